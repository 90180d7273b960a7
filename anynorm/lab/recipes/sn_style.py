"""sn Fig. 10a: losses of Johnson's network for a single style with BN, IN and SN.

    anynorm reproduce sn_style --preset desk

Paper (appendix F): Johnson's network, losses of VGG-16, MS-COCO at 256 × 256 pixels, 40 000 steps of 4 images, no weight decay.
Fig. 10a has curves of the loss, Fig. 1a the weights of SN, Fig. 11 pictures.

    smoke  20 s      digits, a random encoder, two epochs; checks that the code works and claims nothing
    desk   5 min     150 photos at 64 pixels in the style of The Starry Night, half the width, losses of VGG-19, 296 steps of 4;
                     needs style_content/ and adain_vgg19/ in the data directory
    paper  not run   the published setting; needs a folder coco/ with train/ and test/, and the image style.jpg

Scaled down in `desk`: content loss at relu3_1 and style loss at relu1_1, relu2_1 and relu3_1 of the encoder at hand, both with
weight 1, at which pictures show content and style; no total variation. The claims are about the losses and the weights of SN
early in training. The losses differ more between seeds than between norms: with some seeds parts of the pictures
are black for the first hundreds of steps (perhaps because the tanh saturates).

Not in the texts, so chosen here: the weights of the losses, which depend on the scale of the features, and the style image of the
curves. The weights of `paper` are those of `desk`; they were not tried with VGG-16.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.pictures import draw_pictures, encode_picture
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import select, values_of
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.recipes.support.style import draw_losses, loss_metrics, read_pictures
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.statistics import mean_sd
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

NORMS = {"BN": "bn", "IN": "in", "SN": "sn"}
LOSSES = {"loss": "loss", "content_loss": "content loss", "style_loss": "style loss"}
WEIGHTS = [f"{statistic}_{cut}" for statistic in ("mean", "var") for cut in ("in", "ln", "bn")]
PERMISSIVE = "style_content/permissive"
CONTENTS = ("skimage_astronaut", "skimage_chelsea", "skimage_coffee", "sklearn_china")
PRESETS: dict[str, Settings] = {
    "smoke": {
        "train": {
            "task": "single_style_transfer", "data": "digits", "width": 0.25, "num_train": 16, "num_test": 4, "image_size": 16,
            "epochs": 2, "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "num_evals": 2,
        },
        "options": {"style_image": "sklearn:flower.jpg", "encoder": "random", "resize": 24},
        "batch_size": 4,
        "base_batch_size": 4,
        "seeds": 2,
        "norms": NORMS,
        "pictures": {},
    },
    "desk": {
        "train": {
            "task": "single_style_transfer", "data": "npz:style_content/content_photo_pacs_227.npz", "width": 0.5, "num_test": 24,
            "image_size": 64, "epochs": 8, "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant",
            "num_evals": 8,
        },
        "options": {
            "style_image": f"{PERMISSIVE}/style_vangogh_starry_night.webp", "style_size": 128, "encoder": "vgg19-normalised",
            "resize": 96, "content_layer": "relu3_1", "style_layers": "relu1_1,relu2_1,relu3_1", "style_weight": 1.0,
        },
        "batch_size": 4,
        "base_batch_size": 4,
        "seeds": 3,
        "norms": NORMS,
        "pictures": {"contents": [f"{PERMISSIVE}/content_{name}.webp" for name in CONTENTS], "size": 128},
    },
    "paper": {
        "train": {
            "task": "single_style_transfer", "data": "folder:coco", "num_train": 80_000, "image_size": 256, "epochs": 2,
            "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "num_evals": 40,
        },  # 40 000 steps
        "options": {"style_image": "style.jpg", "style_size": 256, "encoder": "vgg16", "resize": 256, "style_weight": 1.0},
        "batch_size": 4,
        "base_batch_size": 4,
        "seeds": 3,
        "norms": NORMS,
        "pictures": {},
    },
}  # fmt: skip


def cells(settings: Settings) -> list[Row]:
    """Return one cell per norm and seed."""
    return grid(settings["seeds"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train the network with a norm; return its losses, SN's weights (means over the layers), and a picture of the first seed."""
    spec = settings["norms"][cell["norm"]]
    config = make_config(settings, spec, settings["batch_size"], cell["seed"], options=settings["options"])
    record = train_run(config, runs)
    row = loss_metrics(record, list(LOSSES))
    layers = record.get("importance") or []
    weights = {name: round(statistics.fmean(layer[name] for layer in layers), 4) if layers else None for name in WEIGHTS}
    has_picture = cell["seed"] == 0 and not row["failure"]
    return row | weights | {"picture": _picture(settings["pictures"], runs, config.id) if has_picture else ""}


def _picture(pictures: dict[str, Any], runs: Path, run: str) -> str:
    if not pictures:
        return ""
    task: Any = load_run(runs, run)
    with torch.no_grad():
        return encode_picture(task.picture(read_pictures(pictures["contents"], pictures["size"])))


def claims(_: Settings) -> list[Claim]:
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


def tables(record: Record) -> list[Table]:
    """Return the losses by norm, and SN's weights."""
    columns = {"mean training loss": "mean_train_loss"}
    columns |= {f"held-out {label}": f"test_{loss}" for loss, label in LOSSES.items()}
    rows = [
        {"norm": norm, **{label: mean_sd(select(record.rows, column, norm=norm)) for label, column in columns.items()}}
        for norm in record.settings["norms"]
    ]
    weights = {name.replace("_", " "): mean_sd(select(record.rows, name, norm="SN")) for name in WEIGHTS}
    return [
        Table(rows, "Losses, mean ± sd over seeds; the first column is the mean over all steps."),
        Table([weights], "Weights of SN, averaged over the layers, mean ± sd over seeds; they start at 1/3."),
    ]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the losses against the steps, and the pictures."""
    panels = {
        "train_loss": "training loss",
        "test_content_loss": "held-out content loss",
        "test_style_loss": "held-out style loss",
    }
    return draw_losses(record, path, panels) + draw_pictures(record, path)


RECIPE = Recipe("sn_style", PRESETS, cells, measure, claims, plot, tables)
