"""sabn Fig. 7: losses of AdaIN, ILM+IN and SaAdaIN in arbitrary style transfer.

    anynorm reproduce sabn_style --preset desk

Paper: the setting of AdaIN (Huang & Belongie 2017): VGG-19 up to relu4_1, 160 000 steps of 8 crops of 256 pixels, MS-COCO and
WikiArt. Figures 7 and 8 have curves and pictures but no numbers.

    smoke  20 s      digits, a random encoder, two epochs; checks that the code works and claims nothing
    desk   7 min     150 photos and 150 paintings at 64 pixels, VGG-19 up to relu3_1, 450 steps of 2; needs style_content/ and
                     adain_vgg19/ in the data directory
    paper  not run   the published setting; needs folders coco/ and wikiart/ with train/ and test/, and vgg_normalised.pth

Scaled down in `desk`: the style is applied at relu3_1, from where a decoder learns in minutes (from relu4_1, pictures showed no
content after 400 steps); the learning rate is 1e-3 instead of 1e-4; and training ends long before the losses stop falling. So the
claims are about the order of the losses early in training. Held-out losses are those of 24 photos, each with one painting.

The content loss is MSE(f(g(t)), t), and t is the output of the norm. In the release of the paper its gradient also reaches
the norm through the target (in AdaIN's release it does not), so SaAdaIN and ILM+IN can lower the loss by moving their target.
AdaIN has no parameters to do so. "SaAdaIN" and "ILM+IN" are trained as in the release; "SaAdaIN detached" has a constant target.
Two metrics mean the same for every norm: the content loss against AdaIN's target, and the error of the normalized content. The
form of ILM+IN with a style is ours (`anynorm.layers.baselines.ilm`): neither paper has one.
"""

from __future__ import annotations

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

NORMS = {
    "AdaIN": {"norm": "adain", "detach_target": True},
    "ILM+IN": {"norm": "ilmadain", "detach_target": False},
    "SaAdaIN": {"norm": "saadain", "detach_target": False},
    "SaAdaIN detached": {"norm": "saadain", "detach_target": True},
}
LOSSES = {
    "content_loss": "content loss",
    "style_loss": "style loss",
    "adain_content_loss": "content loss against AdaIN's target",
    "normalized_content_loss": "error of the normalized content",
}
PERMISSIVE = "style_content/permissive"
CONTENTS = ("skimage_astronaut", "skimage_chelsea", "sklearn_china")
STYLES = ("hokusai_wave", "munch_the_scream", "vangogh_starry_night")
SPLITS = {"train": "training", "test": "held-out"}
PRESETS: dict[str, Settings] = {
    "smoke": {
        "train": {
            "task": "style_transfer", "data": "digits", "num_train": 16, "num_test": 4, "image_size": 16, "epochs": 2, "lr": 1e-3,
            "optimizer": "adam", "weight_decay": 0.0, "num_evals": 2,
        },
        "options": {"styles": "digits", "encoder": "random", "resize": 24},
        "batch_size": 4,
        "base_batch_size": 4,
        "seeds": 2,
        "norms": NORMS,
        "pictures": {},
    },
    "desk": {
        "train": {
            "task": "style_transfer", "data": "npz:style_content/content_photo_pacs_227.npz", "num_test": 24, "image_size": 64,
            "epochs": 6, "lr": 1e-3, "optimizer": "adam", "weight_decay": 0.0, "schedule": "cosine", "num_evals": 6,
        },
        "options": {
            "styles": "npz:style_content/style_painting_pacs_227.npz", "encoder": "vgg19-normalised", "resize": 96,
            "content_layer": "relu3_1", "style_layers": "relu1_1,relu2_1,relu3_1",
        },
        "batch_size": 2,
        "base_batch_size": 2,
        "seeds": 3,
        "norms": NORMS,
        "pictures": {
            "contents": [f"{PERMISSIVE}/content_{name}.webp" for name in CONTENTS],
            "styles": [f"{PERMISSIVE}/style_{name}.webp" for name in STYLES],
            "size": 96,
        },
    },
    "paper": {
        "train": {
            "task": "style_transfer", "data": "folder:coco", "num_train": 80_000, "image_size": 256, "epochs": 16, "lr": 1e-4,
            "optimizer": "adam", "weight_decay": 0.0, "schedule": "inverse", "num_evals": 100,
        },  # 160 000 steps
        "options": {"styles": "folder:wikiart", "encoder": "vgg19-normalised", "resize": 512},
        "batch_size": 8,
        "base_batch_size": 8,
        "seeds": 3,
        "norms": NORMS,
        "pictures": {},
    },
}  # fmt: skip


def cells(settings: Settings) -> list[Row]:
    """Return one cell per norm and seed."""
    return grid(settings["seeds"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a decoder with a norm; return its losses and, for the first seed, a picture."""
    variant: dict[str, Any] = settings["norms"][cell["norm"]]
    options = {**settings["options"], "detach_target": variant["detach_target"]}
    config = make_config(settings, variant["norm"], settings["batch_size"], cell["seed"], options=options)
    row = loss_metrics(train_run(config, runs), list(LOSSES))
    return row | {"picture": _picture(settings["pictures"], runs, config.id) if cell["seed"] == 0 and not row["failure"] else ""}


def _picture(pictures: dict[str, Any], runs: Path, run: str) -> str:
    if not pictures:
        return ""
    task: Any = load_run(runs, run)
    contents, styles = (read_pictures(pictures[key], pictures["size"]) for key in ("contents", "styles"))
    with torch.no_grad():
        return encode_picture(task.picture(contents, styles))


def claims(_: Settings) -> list[Claim]:
    """Return the orders of Fig. 7, and what becomes of them against targets that all norms share."""
    result = []
    for split, name in SPLITS.items():
        for loss in ("content_loss", "style_loss"):
            others = ("AdaIN", "ILM+IN") if split == "train" else ("AdaIN",)
            for other in others:
                figure = f"Fig. 7{'a' if split == 'train' else 'b'}"
                result.append(_lower("SaAdaIN", other, f"{split}_{loss}", f"the {name} {LOSSES[loss]}", figure))
    ours = "not in the paper"
    for norm in ("SaAdaIN", "SaAdaIN detached"):
        for loss in ("adain_content_loss", "normalized_content_loss"):
            result.append(_lower(norm, "AdaIN", f"test_{loss}", f"the held-out {LOSSES[loss]}", ours))
    result.append(_lower("SaAdaIN detached", "AdaIN", "test_style_loss", "the held-out style loss", ours))
    result.append(_lower("SaAdaIN", "SaAdaIN detached", "test_content_loss", "the held-out content loss", ours))
    return result


def _lower(norm: str, other: str, column: str, quantity: str, paper: str) -> Claim:
    statement = f"{quantity} of {other} is larger than that of {norm}"
    return Claim(statement, paper, values_of(column, norm=other), values_of(column, norm=norm))


def tables(record: Record) -> list[Table]:
    """Return the losses by norm."""
    rows = []
    for norm in record.settings["norms"]:
        columns = {"training content": "train_content_loss", "training style": "train_style_loss"}
        columns |= {f"held-out {LOSSES[loss].replace(' loss', '')}": f"test_{loss}" for loss in LOSSES}
        rows.append({"norm": norm, **{name: mean_sd(select(record.rows, key, norm=norm)) for name, key in columns.items()}})
    return [Table(rows, "Losses, mean ± sd over seeds; training losses are means over the last sixth of the steps.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the losses against the steps, and the pictures."""
    panels = {
        f"{split}_{loss}": f"{name} {LOSSES[loss]}" for split, name in SPLITS.items() for loss in ("content_loss", "style_loss")
    }
    return draw_losses(record, path, panels) + draw_pictures(record, path)


RECIPE = Recipe("sabn_style", PRESETS, cells, measure, claims, plot, tables)
