"""sn Fig. 4, in the text: SN's weights with another solver, initialization and decay.

    anynorm reproduce sn_protocols --preset night

Paper (sec. 4.1, ablation study): ResNet-50 on ImageNet was trained several times; with a fixed network, task, batch setting and
data, "the importance weights of SN are not sensitive to the change of training protocols such as solver, parameter
initialization, and learning rate decay". No numbers, and the protocols are not named.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs, 32 samples per step (`support.presets.NIGHT`)
    paper  ResNet-50 on ImageNet (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

Chosen here: the protocols (see `protocols`), and that weights are similar if their averages over the layers differ by less than
0.05.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.sn.weights import CUTS, MIN_MOVE, MOVED, STATISTICS, WEIGHTS, moved, weight_metrics
from anynorm.lab.recipes.support.claims import UNITS, Claim, Equivalent, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import Measured, Quantity
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

REFERENCE, SOLVER, INITIALIZATION, DECAY = "reference", "Adam", "other initialization", "other decay"
SIMILAR = 0.05
"""Largest difference of similar weights."""


@dataclass(frozen=True, kw_only=True)
class ProtocolSettings(TrainingSettings):
    """Settings of SN's weights by training protocol.

    Args:
        protocols: configurations by label; norm and seed are set.
        min_train_accuracy: training accuracy in % from which on a network has learned.
        min_move: difference from equal weights from which on equal weights say something.
    """

    protocols: Mapping[str, Config]
    min_train_accuracy: float
    min_move: float = MIN_MOVE


def protocols(config: Config) -> dict[str, Config]:
    """Return the protocols of a configuration: one that changes nothing, and three that change one setting each."""
    initialization = "default" if config.initialization == "he" else "he"
    schedule = "step:0.5,0.75" if config.schedule == "cosine" else "cosine"
    changed = {
        REFERENCE: config,
        SOLVER: replace(config, optimizer="adam", lr=config.lr / 100),
        INITIALIZATION: replace(config, initialization=initialization),
        DECAY: replace(config, schedule=schedule),
    }
    return {label: replace(each, norm="sn") for label, each in changed.items()}


PRESETS = {
    "smoke": ProtocolSettings(seeds=2, training=SMOKE, protocols=protocols(SMOKE.config), min_train_accuracy=0.0, min_move=0.0),
    "night": ProtocolSettings(seeds=8, training=NIGHT, protocols=protocols(NIGHT.config), min_train_accuracy=LEARNED_NIGHT),
    "paper": ProtocolSettings(
        seeds=3, training=IMAGENET_SN, protocols=protocols(IMAGENET_SN.config), min_train_accuracy=LEARNED_PAPER
    ),
}


def cells(settings: ProtocolSettings) -> list[Cell]:
    """Return one cell per protocol and seed."""
    return grid(settings.seeds, protocol=settings.protocols)


def measure(settings: ProtocolSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network with SN and return its accuracy and its weights."""
    config = replace(settings.protocols[cell["protocol"]], seed=cell["seed"])
    record = train_run(make_config(config, settings.training), runs)
    return run_metrics(record) | weight_metrics(record)


def controls(settings: ProtocolSettings) -> list[Control]:
    """Return when a network has learned, and that the weights of the reference have left their start values."""
    weights: list[Quantity] = [Measured(name, {"protocol": REFERENCE}) for name in WEIGHTS]
    return [Learned(settings.min_train_accuracy), moved(weights, 1 / 3, at_least=settings.min_move)]


def claims(settings: ProtocolSettings) -> list[Claim]:
    """Return that no weight depends on the protocol."""
    source = Source("sn", "sec. 4.1, ablation study", "all trained models share similar importance weights")
    return [
        Equivalent(
            statement=f"{cut.upper()}'s weight in the {name} differs by less than {SIMILAR} with {protocol}",
            source=source,
            first=Measured(f"{statistic}_{cut}", {"protocol": protocol}),
            second=Measured(f"{statistic}_{cut}", {"protocol": REFERENCE}),
            delta=SIMILAR,
            scale=UNITS,
            group=f"sn: weights with {protocol}",
            requires=(MOVED,),
        )
        for protocol in settings.protocols
        if protocol != REFERENCE
        for statistic, name in STATISTICS.items()
        for cut in CUTS
    ]


def tables(record: RecipeRecord[ProtocolSettings]) -> list[Table]:
    """Return weights and accuracies by protocol."""
    columns = {name.replace("_", " "): name for name in WEIGHTS}
    columns |= {"accuracy": "accuracy", "training accuracy": "train_accuracy"}
    rows = metric_rows(record.rows, "protocol", record.settings.protocols, columns)
    return [Table(rows, "Weights averaged over the layers, and accuracies in %; mean ± sd over seeds.")]


def plot(record: RecipeRecord[ProtocolSettings], path: Path) -> list[Path]:
    """Plot the weights by protocol."""
    fig = Figure(figsize=(11, 4), layout="constrained")
    for ax, (statistic, name) in zip(fig.subplots(1, 2, sharey=True), STATISTICS.items(), strict=True):
        lines = {
            cut.upper(): {
                protocol: successful(record.rows, f"{statistic}_{cut}", protocol=protocol)
                for protocol in record.settings.protocols
            }
            for cut in CUTS
        }
        draw.lines(lines, ax, xlabel="training protocol", ylabel="weight, averaged over layers", title=f"SN's weights: {name}")
    return save_figure(fig, path)


RECIPE = Recipe("sn_protocols", PRESETS, cells, measure, claims, plot, tables, controls)
