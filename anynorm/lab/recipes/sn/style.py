"""sn Fig. 10a: losses of Johnson's network for a single style with BN, IN and SN.

    anynorm reproduce sn_style --preset desk

Paper (appendix F): Johnson's network, losses of VGG-16, MS-COCO at 256 × 256 pixels, 40 000 steps of 4 images, no weight decay.
Fig. 10a has curves of the loss, Fig. 1a the weights of SN, Fig. 11 pictures.

    smoke  digits, a random encoder, two epochs; checks that the code works and claims nothing
    desk   150 photos at 64 pixels in the style of The Starry Night, half the width, losses of VGG-19, 296 steps of 4;
           needs style_content/ and adain_vgg19/ in the data directory
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

from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_over_seeds, values_of
from anynorm.lab.recipes.support.runs import make_config, mean_weights, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.recipes.support.style_transfer import Pictures, StyleSettings, draw_losses, draw_picture, loss_metrics
from anynorm.lab.tasks.style.options import SingleStyleOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class SnStyleSettings(StyleSettings):
    """Settings of style transfer with a single style.

    Args:
        norms: specs by label.
    """

    norms: Mapping[str, str]


NORMS = {"BN": "bn", "IN": "in", "SN": "sn"}
LOSSES = {"loss": "loss", "content_loss": "content loss", "style_loss": "style loss"}
WEIGHTS = [f"{statistic}_{cut}" for statistic in ("mean", "var") for cut in ("in", "ln", "bn")]
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
PICTURES = Pictures(contents=tuple(f"{PERMISSIVE}/content_{name}.webp" for name in CONTENTS), size=128)
PRESETS = {
    "smoke": SnStyleSettings(seeds=2, training=Training(SMOKE, base_batch_size=4), norms=NORMS),
    "desk": SnStyleSettings(seeds=3, training=Training(DESK, base_batch_size=4), norms=NORMS, pictures=PICTURES),
    "paper": SnStyleSettings(seeds=3, training=Training(PAPER, base_batch_size=4), norms=NORMS),
}


def cells(settings: SnStyleSettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: SnStyleSettings, cell: Cell, runs: Path) -> Measurement:
    """Train the network with a norm; return its losses, SN's weights (means over the layers), and a picture of the first seed."""
    config = replace(settings.training.config, norm=settings.norms[cell["norm"]], seed=cell["seed"])
    config = make_config(config, settings.training.base_batch_size)
    record = train_run(config, runs)
    row = loss_metrics(record, list(LOSSES))
    has_picture = cell["seed"] == 0 and not row["failure"]
    picture = draw_picture(settings.pictures, runs, config.id) if has_picture else ""
    return row | mean_weights(record, WEIGHTS) | {"picture": picture}


def claims(_: SnStyleSettings) -> list[Claim]:
    """Return the orders of the losses, and of SN's weights."""
    result = []
    for other in ("BN", "IN"):
        for column, quantity in (
            ("mean_train_loss", "mean training loss of all steps"),
            ("test_loss", "held-out loss at the end"),
        ):
            statement = f"the {quantity} of {other} is larger than that of SN"
            result.append(Claim(statement, "Fig. 10a", values_of(column, norm=other), values_of(column, norm="SN")))
    statement = "the held-out loss at the end of BN is larger than that of IN"
    result.append(
        Claim(statement, "App. F, of Johnson et al.", values_of("test_loss", norm="BN"), values_of("test_loss", norm="IN"))
    )
    for statistic, name in (("mean", "mean"), ("var", "variance")):
        for cut in ("ln", "bn"):
            statement = f"SN's weight of IN is larger than that of {cut.upper()} in the {name}"
            weights = [values_of(f"{statistic}_{each}", norm="SN") for each in ("in", cut)]
            result.append(Claim(statement, "Fig. 1a: SN selects IN", *weights))
    return result


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


RECIPE = Recipe("sn_style", PRESETS, cells, measure, claims, plot, tables)
