"""sn Figs. 4 and 7: SN's weights of IN, LN and BN against the batch size, and by layer.

    anynorm reproduce sn_importance --preset desk

Paper: ResNet-50 on ImageNet, 32 to 1 images on each of 8 devices; the weights of IN, LN and BN averaged over the 53 layers
(Fig. 4), and of each layer at 32 and 2 (Fig. 7, App. C.2). With one image SN has no BN.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`), batch sizes 32 to 2: a
           demonstration; decides nothing unless its controls hold
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs, 32 samples per step (`support.presets.NIGHT`)
    paper  the published setting (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

In `desk` the last block has maps of 1 × 1 pixels: IN's mean is the value itself and its variance 0, so in three of the twelve
layers the weight of IN is not a choice between estimates, and steps differ by batch size. `night` has maps of at least 4 × 4
pixels, and its rows have the weights of each layer, so that claims about `res5` are made for the last stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_DESK, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.sn.weights import (
    CUTS,
    MIN_MOVE,
    MOVED,
    STATISTICS,
    WEIGHTS,
    adjacent_distance,
    draw_layers,
    moved,
    stage_weight,
    statistics_distance,
    weight_metrics,
)
from anynorm.lab.recipes.support.claims import OURS, UNITS, Claim, Larger, Level, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import DESK, NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import Constant, Measured, Quantity, mean_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

FIG_4 = Source("sn", "Fig. 4")
ADJACENT = 0.05
"""Total variation distance of weights from which on layers, or mean and variance, are said to choose differently."""


@dataclass(frozen=True, kw_only=True)
class ImportanceSettings(TrainingSettings):
    """Settings of SN's weights by batch size.

    Args:
        batch_sizes: numbers of samples per forward pass and device, the largest first; with 1, SN has no BN.
        by_layer: whether rows have the weights of each layer, and layers have maps of more than one pixel.
        min_train_accuracy: training accuracy in % from which on a network has learned.
        min_move: difference from equal weights from which on SN is said to have a preference.
    """

    batch_sizes: tuple[int, ...]
    by_layer: bool = False
    min_train_accuracy: float = LEARNED_DESK
    min_move: float = MIN_MOVE


PRESETS = {
    "smoke": ImportanceSettings(
        seeds=2, training=SMOKE, batch_sizes=(32, 2, 1), by_layer=True, min_train_accuracy=0.0, min_move=0.0
    ),
    "desk": ImportanceSettings(seeds=3, training=DESK, batch_sizes=(32, 16, 8, 4, 2)),
    "night": ImportanceSettings(
        seeds=8, training=NIGHT, batch_sizes=(32, 16, 4, 2, 1), by_layer=True, min_train_accuracy=LEARNED_NIGHT
    ),
    "paper": ImportanceSettings(
        seeds=3, training=IMAGENET_SN, batch_sizes=(32, 16, 8, 4, 2, 1), by_layer=True, min_train_accuracy=LEARNED_PAPER
    ),
}


def cells(settings: ImportanceSettings) -> list[Cell]:
    """Return one cell per batch size and seed."""
    return grid(settings.seeds, batch_size=settings.batch_sizes)


def measure(settings: ImportanceSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network with SN and return its accuracy, its weights averaged over the layers, and those of each layer."""
    size = cell["batch_size"]
    config = replace(settings.training.config, norm="sn" if size > 1 else "sn-bn", batch_size=size, seed=cell["seed"])
    record = train_run(make_config(config, settings.training), runs)
    return run_metrics(record) | weight_metrics(record)


def largest_and_smallest(settings: ImportanceSettings) -> tuple[int, int]:
    """Return the largest and the smallest batch size at which SN has BN."""
    sizes = [size for size in settings.batch_sizes if size > 1]
    return sizes[0], sizes[-1]


def average(cut: str, size: int) -> Quantity:
    """Return the weight of a cut at a batch size, averaged over all layers and over mean and variance, as in Fig. 4."""
    return mean_of([Measured(f"{statistic}_{cut}", {"batch_size": size}) for statistic in STATISTICS])


def controls(settings: ImportanceSettings) -> list[Control]:
    """Return when a network has learned, and that weights have left their start values."""
    weights: list[Quantity] = [average(cut, size) for cut in CUTS for size in largest_and_smallest(settings)]
    return [Learned(settings.min_train_accuracy), moved(weights, 1 / 3, at_least=settings.min_move)]


def claims(settings: ImportanceSettings) -> list[Claim]:
    """Return how weights change with the batch size, which are preferred, and what App. C.2 observes in layers."""
    large, small = largest_and_smallest(settings)
    result: list[Claim] = []
    for statistic, name in STATISTICS.items():
        for cut, high, low in (("bn", large, small), ("ln", small, large)):
            weights = [Measured(f"{statistic}_{cut}", {"batch_size": size}) for size in (high, low)]
            result.append(
                Larger(
                    statement=f"{cut.upper()}'s weight in the {name} is larger at batch {high} than at {low}",
                    source=FIG_4._replace(quote="it falls" if cut == "bn" else "it rises"),
                    larger=weights[0],
                    smaller=weights[1],
                    scale=UNITS,
                    group=f"sn Fig. 4: {cut.upper()}'s weight by batch size",
                    requires=(MOVED,),
                )
            )
    classification = Source("sn", "Fig. 1a, classification", "SN chooses BN more than IN and LN in image classification")
    small_batch = FIG_4._replace(quote="it selects LN instead when small minibatch is presented")
    for cut, others, size, source in (("bn", ("in", "ln"), large, classification), ("ln", ("in", "bn"), small, small_batch)):
        result += [
            Larger(
                statement=f"{cut.upper()}'s weight is larger than {other.upper()}'s at batch {size}",
                source=source,
                larger=average(cut, size),
                smaller=average(other, size),
                scale=UNITS,
                group=f"sn Fig. 4: SN prefers {cut.upper()} at batch {size}",
                requires=(MOVED,),
            )
            for other in others
        ]
    return result + [claim for size in (large, small) for claim in _layer_claims(settings, size)]


def _layer_claims(settings: ImportanceSettings, size: int) -> list[Claim]:
    """Return the observations of App. C.2 at a batch size, for the last stage in the place of res5."""
    cell = {"batch_size": size}
    source = Source("sn", "App. C.2, first observation", "σ of BN in 'res5' are mostly reduced compared to μ of BN")
    if not settings.by_layer:
        mean, var = (Measured(f"{statistic}_bn", cell) for statistic in STATISTICS)
        statement = f"BN's weight is larger in the mean than in the variance, averaged over all layers (batch {size})"
        return [Larger(statement=statement, source=OURS, larger=mean, smaller=var, scale=UNITS)]
    mean, var = (Measured(stage_weight([f"{statistic}_bn"], last=True), cell) for statistic in STATISTICS)
    both = [f"{statistic}_bn" for statistic in STATISTICS]
    first, last = (Measured(stage_weight(both, last=is_last), cell) for is_last in (False, True))
    deep = Source("sn", "App. C.2, third observation", "deeper layers prefer LN and IN more than BN, as illustrated in 'res5'")
    places = Source("sn", "App. C.2, second observation", "adjacent SN layers ... may choose different importance weights")
    group = f"sn App. C.2, third observation, batch {size}"
    figure = "Fig. 7a, 7b" if size == settings.batch_sizes[0] else "Fig. 7c, 7d"
    notable = Source("sn", figure, "the importance weights of μ and σ could have notable differences")
    return [
        _claim(
            f"BN's weight in the last stage is larger in the mean than in the variance (batch {size})", mean, var, source=source
        ),
        _claim(f"BN's weight is smaller in the last stage than in the first (batch {size})", first, last, deep, group),
        _claim(f"BN's weight in the last stage is below 1/3 (batch {size})", Constant(1 / 3), last, deep, group),
        _claim(
            f"weights of adjacent layers of a block differ by more than {ADJACENT} (total variation, batch {size})",
            Measured(adjacent_distance, cell),
            Constant(ADJACENT),
            source=places,
        ),
        _claim(
            f"weights of mean and variance of a layer differ by more than {ADJACENT} (total variation, batch {size})",
            Measured(statistics_distance, cell),
            Constant(ADJACENT),
            source=notable,
        ),
    ]


def _claim(statement: str, larger: Quantity, smaller: Quantity, source: Source, group: str = "") -> Larger:
    """Return a claim about layers or stages; one observation of the paper counts once."""
    level, group = Level.LAYER if "layer" in statement else Level.STAGE, group or str(source)
    return Larger(statement=statement, source=source, larger=larger, smaller=smaller, scale=UNITS, level=level, group=group)


def tables(record: RecipeRecord[ImportanceSettings]) -> list[Table]:
    """Return the weights and accuracies by batch size."""
    columns = {name.replace("_", " "): name for name in WEIGHTS}
    columns |= {"accuracy": "accuracy", "training accuracy": "train_accuracy"}
    sizes = [size for size in record.settings.batch_sizes if size > 1]
    rows = metric_rows(record.rows, "batch_size", sizes, columns, label="batch")
    return [Table(rows, "Weights averaged over the layers, and accuracies in %; mean ± sd over seeds.")]


def plot(record: RecipeRecord[ImportanceSettings], path: Path) -> list[Path]:
    """Plot the weights against the batch size (Fig. 4), and those of each layer of the first seed (Fig. 7, same colors)."""
    settings = record.settings
    fig = Figure(figsize=(11, 10 if settings.by_layer else 4), layout="constrained")
    axes = fig.subplots(3 if settings.by_layer else 1, 2, squeeze=False, sharey="row")
    for ax, (statistic, name) in zip(axes[0], STATISTICS.items(), strict=True):
        lines = {
            cut.upper(): {
                size: values
                for size in settings.batch_sizes
                if (values := successful(record.rows, f"{statistic}_{cut}", batch_size=size))
            }
            for cut in CUTS
        }
        draw.lines(lines, ax, xlabel="samples per batch", ylabel="weight, averaged over layers", title=f"sn Fig. 4: {name}")
    for size, row in zip(largest_and_smallest(settings), axes[1:], strict=False):
        first = next((each for each in record.rows if each["batch_size"] == size and not each["failure"]), None)
        for ax, (statistic, name) in zip(row, STATISTICS.items(), strict=True):
            draw_layers(ax, first["layers"] if first else {}, statistic, f"sn Fig. 7: {name}, batch {size}, seed 0")
    return save_figure(fig, path)


RECIPE = Recipe("sn_importance", PRESETS, cells, measure, claims, plot, tables, controls)
