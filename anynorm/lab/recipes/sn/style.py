"""sn Fig. 10a: losses of Johnson's network for a single style with BN, IN and SN.

    anynorm reproduce sn_style --preset desk

Paper (appendix F): Johnson's network, losses of VGG-16, MS-COCO at 256 × 256 pixels, 40 000 steps of 4 images, no weight decay.
Fig. 10a has curves of the loss, Fig. 1a the weights of SN, Fig. 11 pictures.

    smoke  digits, a random encoder, two epochs; checks that the code works and claims nothing
    desk   150 photos at 64 pixels in the style of The Starry Night, half the width, losses of VGG-19, 296 steps of 4;
           needs style_content/ and adain_vgg19/ in the data directory: a demonstration; decides nothing unless its controls hold
    night  the same with 1480 steps, and a last convolution that starts with a tenth of the weights, so that tanh does not
           saturate; its numbers are subject to a pilot until a record exists
    paper  the published setting; needs a folder coco/ with train/ and test/, and the image style.jpg

Scaled down in `desk`: content loss at relu3_1 and style loss at relu1_1, relu2_1 and relu3_1 of the encoder at hand, both with
weight 1, at which pictures show content and style; no total variation. The claims are about the losses and the weights of SN
early in training. The losses differ more between seeds than between norms: with some seeds parts of the pictures
are black for the first hundreds of steps (perhaps because the tanh saturates).

Not in the texts, so chosen here: the weights of the losses, which depend on the scale of the features, and the style image of the
curves. The weights of `paper` are those of `desk`; they were not tried with VGG-16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anynorm.lab.recipes.sn.weights import CUTS, MIN_MOVE, MOVED, STATISTICS, WEIGHTS, moved
from anynorm.lab.recipes.support.claims import RATIO, UNITS, Claim, Larger, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.quantities import Measured, Quantity, mean_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_over_seeds
from anynorm.lab.recipes.support.runs import make_config, mean_weights, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.recipes.support.style_transfer import Pictures, StyleSettings, draw_losses, draw_picture, loss_metrics
from anynorm.lab.tasks.style.options import SingleStyleOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class SnStyleSettings(StyleSettings):
    """Settings of style transfer with a single style.

    Args:
        norms: specs by label.
        min_fall: factor by which the training loss falls, from the first evaluation to the last, if a network has learned.
        min_move: difference from equal weights from which on SN is said to have a preference.
    """

    norms: Mapping[str, str]
    min_fall: float = 2.0
    min_move: float = MIN_MOVE


NORMS = {"BN": "bn", "IN": "in", "SN": "sn"}
LOSSES = {"loss": "loss", "content_loss": "content loss", "style_loss": "style loss"}
PERMISSIVE = "style_content/permissive"
CONTENTS = ("skimage_astronaut", "skimage_chelsea", "skimage_coffee", "sklearn_china")
COMMON = Config(task="single_style_transfer", lr=1e-3, optimizer="adam", weight_decay=0.0, schedule="constant", batch_size=4)
SMOKE = replace(
    COMMON, data="digits", width=0.25, num_train=16, num_test=4, image_size=16, epochs=2, num_evals=2,
    options=SingleStyleOptions(style_image="sklearn:flower.jpg", encoder="random", resize=24),
)  # fmt: skip
DESK = replace(
    COMMON, data="npz:style_content/content_photo_pacs_227.npz", width=0.5, num_test=24, image_size=64, epochs=8, num_evals=8,
    options=SingleStyleOptions(
        style_image=f"{PERMISSIVE}/style_vangogh_starry_night.webp", style_size=128, encoder="vgg19-normalised", resize=96,
        content_layer="relu3_1", style_layers=("relu1_1", "relu2_1", "relu3_1"), style_weight=1.0,
    ),
)  # fmt: skip
PAPER = replace(
    COMMON, data="folder:coco", num_train=80_000, image_size=256, epochs=2, num_evals=40,
    options=SingleStyleOptions(style_image="style.jpg", style_size=256, encoder="vgg16", resize=256, style_weight=1.0),
)  # 40 000 steps  # fmt: skip
NIGHT = replace(
    DESK, epochs=40, num_evals=20, options={**DESK.option_values, "last_layer_scale": 0.1}
)  # 1480 steps  # fmt: skip
PICTURES = Pictures(contents=tuple(f"{PERMISSIVE}/content_{name}.webp" for name in CONTENTS), size=128)
PRESETS = {
    "smoke": SnStyleSettings(seeds=2, training=Training(SMOKE, base_batch_size=4), norms=NORMS, min_fall=0.0, min_move=0.0),
    "desk": SnStyleSettings(seeds=3, training=Training(DESK, base_batch_size=4), norms=NORMS, pictures=PICTURES),
    "night": SnStyleSettings(seeds=8, training=Training(NIGHT, base_batch_size=4), norms=NORMS, pictures=PICTURES),
    "paper": SnStyleSettings(
        seeds=3, training=Training(PAPER, base_batch_size=4), norms=NORMS, pictures=replace(PICTURES, size=512)
    ),
}


def cells(settings: SnStyleSettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: SnStyleSettings, cell: Cell, runs: Path) -> Measurement:
    """Train the network with a norm; return its losses, SN's weights (means over the layers), and a picture of the first seed."""
    config = replace(settings.training.config, norm=settings.norms[cell["norm"]], seed=cell["seed"])
    config = make_config(config, settings.training)
    record = train_run(config, runs)
    row = loss_metrics(record, list(LOSSES))
    has_picture = cell["seed"] == 0 and not row["failure"]
    picture = draw_picture(settings.pictures, runs, config.id) if has_picture else ""
    return row | mean_weights(record, WEIGHTS) | {"picture": picture}


def fall(row: Row) -> float | None:
    """Return the ratio of the training loss of the first evaluation to that of the last; None for a failed run."""
    losses = row["curves"]["train_loss"]
    return None if row["failure"] else losses[0] / losses[-1]


def _learned(norm: str) -> str:
    return f"training loss with {norm}, first evaluation / last"


def controls(settings: SnStyleSettings) -> list[Control]:
    """Return that each network has learned, and that SN's weights have left their start values."""
    learned = [Requirement(_learned(norm), Measured(fall, {"norm": norm}), settings.min_fall) for norm in settings.norms]
    weights: list[Quantity] = [
        mean_of([Measured(f"{statistic}_{cut}", {"norm": "SN"}) for statistic in STATISTICS]) for cut in CUTS
    ]
    return [*learned, moved(weights, 1 / 3, at_least=settings.min_move)]


def claims(_: SnStyleSettings) -> list[Claim]:
    """Return the orders of the losses, and of SN's weights."""
    result: list[Claim] = []
    for other in ("BN", "IN"):
        for column, quantity in (
            ("mean_train_loss", "mean training loss of all steps"),
            ("test_loss", "held-out loss at the end"),
        ):
            result.append(
                _larger_loss(
                    f"the {quantity} of {other} is larger than that of SN",
                    Source("sn", "Fig. 10a", "SN enables faster convergence than both IN and BN"),
                    column,
                    (other, "SN"),
                )
            )
    statement = "the held-out loss at the end of BN is larger than that of IN"
    quote = "Johnson et al. (2016) show that IN works better than BN in this task"
    result.append(_larger_loss(statement, Source("sn", "App. F", quote), "test_loss", ("BN", "IN")))
    for statistic, name in STATISTICS.items():
        for cut in ("ln", "bn"):
            result.append(
                Larger(
                    statement=f"SN's weight of IN is larger than that of {cut.upper()} in the {name}",
                    source=Source("sn", "Fig. 1a, style transfer", "SN selects IN"),
                    larger=Measured(f"{statistic}_in", {"norm": "SN"}),
                    smaller=Measured(f"{statistic}_{cut}", {"norm": "SN"}),
                    scale=UNITS,
                    group="sn Fig. 1a: IN in style transfer",
                    requires=(MOVED,),
                )
            )
    return result


def _larger_loss(statement: str, source: Source, column: str, norms: tuple[str, str]) -> Larger:
    larger, smaller = (Measured(column, {"norm": norm}) for norm in norms)
    return Larger(
        statement=statement,
        source=source,
        larger=larger,
        smaller=smaller,
        scale=RATIO,
        group=f"sn Fig. 10a: {norms[0]} and {norms[1]}",
        requires=tuple(map(_learned, norms)),
    )


def tables(record: RecipeRecord[SnStyleSettings]) -> list[Table]:
    """Return the losses by norm, and SN's weights."""
    columns = {"mean training loss": "mean_train_loss"}
    columns |= {f"held-out {label}": f"test_{loss}" for loss, label in LOSSES.items()}
    rows = metric_rows(record.rows, "norm", record.settings.norms, columns)
    weights = {name.replace("_", " "): result_over_seeds(record.rows, name, norm="SN") for name in WEIGHTS}
    return [
        Table(rows, "Losses, mean ± sd over seeds; the first column is the mean over all steps."),
        Table([weights], "Weights of SN, averaged over the layers, mean ± sd over seeds; they start at 1/3."),
    ]


def plot(record: RecipeRecord[SnStyleSettings], path: Path) -> list[Path]:
    """Plot the losses against the steps, and the pictures."""
    panels = {
        "train_loss": "training loss",
        "test_content_loss": "held-out content loss",
        "test_style_loss": "held-out style loss",
    }
    norms = record.settings.norms
    return draw_losses(record, path, norms, panels) + draw_pictures(record, path, norms)


RECIPE = Recipe("sn_style", PRESETS, cells, measure, claims, plot, tables, controls)
