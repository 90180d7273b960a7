"""sabn Figs. 7 and 8: losses and pictures of AdaIN, ILM+IN and SaAdaIN in style transfer.

    anynorm reproduce sabn_style --preset night

Paper: the setting of AdaIN (Huang & Belongie 2017): VGG-19 up to relu4_1, 160 000 steps of 8 crops of 256 pixels, MS-COCO and
WikiArt. Figures 7 and 8 have curves and pictures but no numbers.

    smoke  digits, a random encoder, two epochs; checks that the code works and claims nothing
    desk   150 photos and 150 paintings at 64 pixels, VGG-19 up to relu3_1, 450 steps of 2; needs style_content/ and
           adain_vgg19/ in the data directory; a demonstration, which decides nothing unless its controls hold
    night  `desk` with 1800 steps and 96 held-out pairs; subject to a pilot until its record exists
    paper  the published setting; needs folders coco/ and wikiart/ with train/ and test/, and vgg_normalised.pth

Controls: the decoder has learned (its training style loss has fallen by half; the normalized features of held-out pictures have a
correlation of at least 30 % with those of the photos), and the losses have stopped falling: the held-out style loss of the end is
at least 95 % of that after two thirds of the training.

Scaled down in `desk` and `night`: the style is applied at relu3_1, from where a decoder learns in minutes (from relu4_1, pictures
showed no content after 400 steps); the learning rate is 1e-3 instead of 1e-4. The losses of `desk` are still falling at the end.
Its held-out losses are those of 24 photos, each with one painting; `night` has 48 photos with two paintings each.

The content loss is MSE(f(g(t)), t), and t is the output of the norm. In the release of the paper its gradient also reaches
the norm through the target (in AdaIN's release it does not), so SaAdaIN and ILM+IN can lower the loss by moving their target.
AdaIN has no parameters to do so. "SaAdaIN" and "ILM+IN" are trained as in the release; "SaAdaIN detached" has a constant target.
Two metrics mean the same for every norm: the content loss against AdaIN's target, and the error of the normalized content. The
form of ILM+IN with a style is ours (`anynorm.layers.baselines.ilm`): neither paper has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anynorm.lab.recipes.support.claims import OURS, RATIO, Claim, Larger, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.pictures import draw_pictures
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows
from anynorm.lab.recipes.support.runs import make_config, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.recipes.support.style_transfer import Pictures, StyleSettings, draw_losses, draw_picture, loss_metrics
from anynorm.lab.tasks.style.options import StyleTransferOptions
from anynorm.lab.tasks.style.task import StyleTransfer
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table


@dataclass(frozen=True)
class StyleNorm:
    """A norm of the decoder's input.

    Args:
        norm: the spec.
        detach_target: whether the target of the content loss is constant.
    """

    norm: str
    detach_target: bool


@dataclass(frozen=True, kw_only=True)
class SaStyleSettings(StyleSettings):
    """Settings of arbitrary style transfer.

    Args:
        norms: norms by label.
        min_fall: ratio of the first to the last training style loss from which on a decoder has learned.
        min_converged: held-out style loss of the end, in % of that after two thirds of the training.
        min_content: correlation in % of the normalized features of pictures and photos from which on content is kept.
    """

    norms: Mapping[str, StyleNorm]
    min_fall: float = 2.0
    min_converged: float = 95.0
    min_content: float = 30.0


NORMS = {
    "AdaIN": StyleNorm("adain", detach_target=True),
    "ILM+IN": StyleNorm("ilmadain", detach_target=False),
    "SaAdaIN": StyleNorm("saadain", detach_target=False),
    "SaAdaIN detached": StyleNorm("saadain", detach_target=True),
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
COMMON = Config(task="style_transfer", lr=1e-3, optimizer="adam", weight_decay=0.0)
SMOKE = replace(
    COMMON, data="digits", num_train=16, num_test=4, image_size=16, epochs=2, num_evals=2, batch_size=4,
    options=StyleTransferOptions(styles="digits", encoder="random", resize=24),
)  # fmt: skip
DESK = replace(
    COMMON, data="npz:style_content/content_photo_pacs_227.npz", num_test=24, image_size=64, epochs=6, schedule="cosine",
    num_evals=6, batch_size=2,
    options=StyleTransferOptions(
        styles="npz:style_content/style_painting_pacs_227.npz", encoder="vgg19-normalised", resize=96, content_layer="relu3_1",
        style_layers=("relu1_1", "relu2_1", "relu3_1"),
    ),
)  # fmt: skip
NIGHT = replace(DESK, num_test=48, epochs=24, num_evals=12, options=replace(StyleTransfer.options_of(DESK), styles_per_content=2))
"""1800 steps; 48 photos with two paintings each."""
PAPER = replace(
    COMMON, data="folder:coco", num_train=80_000, image_size=256, epochs=16, lr=1e-4, schedule="inverse", num_evals=100,
    batch_size=8, options=StyleTransferOptions(styles="folder:wikiart", encoder="vgg19-normalised", resize=512),
)  # 160 000 steps  # fmt: skip
PICTURES = Pictures(
    contents=tuple(f"{PERMISSIVE}/content_{name}.webp" for name in CONTENTS),
    styles=tuple(f"{PERMISSIVE}/style_{name}.webp" for name in STYLES),
    size=96,
)
PRESETS = {
    "smoke": SaStyleSettings(
        seeds=2, training=Training(SMOKE, base_batch_size=4), norms=NORMS, min_fall=0.0, min_converged=0.0, min_content=-100.0
    ),
    "desk": SaStyleSettings(seeds=3, training=Training(DESK, base_batch_size=2), norms=NORMS, pictures=PICTURES),
    "night": SaStyleSettings(seeds=8, training=Training(NIGHT, base_batch_size=2), norms=NORMS, pictures=PICTURES),
    "paper": SaStyleSettings(
        seeds=3, training=Training(PAPER, base_batch_size=8), norms=NORMS, pictures=replace(PICTURES, size=256)
    ),
}


def cells(settings: SaStyleSettings) -> list[Cell]:
    """Return one cell per norm and seed."""
    return grid(settings.seeds, norm=settings.norms)


def measure(settings: SaStyleSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a decoder with a norm; return its losses and, for the first seed, a picture."""
    norm, config = settings.norms[cell["norm"]], settings.training.config
    config = replace(config, options=replace(StyleTransfer.options_of(config), detach_target=norm.detach_target))
    config = make_config(replace(config, norm=norm.norm, seed=cell["seed"]), settings.training)
    row = loss_metrics(train_run(config, runs), list(LOSSES))
    has_picture = cell["seed"] == 0 and not row["failure"]
    return row | {"picture": draw_picture(settings.pictures, runs, config.id) if has_picture else ""}


def fall(norm: str) -> str:
    """Return the name of the requirement that the decoder of a norm has learned."""
    return f"fall of the training style loss of {norm} (first divided by last)"


def content(norm: str) -> str:
    """Return the name of the requirement that the pictures of a norm keep the content of the photos."""
    return f"correlation of the normalized features of pictures and photos of {norm} (%)"


def convergence(norm: str) -> str:
    """Return the name of the requirement that the decoder of a norm has converged."""
    return f"held-out style loss of {norm} at the end (% of that after two thirds of the training)"


def controls(settings: SaStyleSettings) -> list[Control]:
    """Return that the decoder of each norm has learned, keeps content, and has converged."""
    result: list[Control] = []
    for norm in settings.norms:
        cell = {"norm": norm}
        result.append(Requirement(fall(norm), Measured(loss_fall, cell), settings.min_fall))
        result.append(Requirement(content(norm), Measured(content_correlation, cell), settings.min_content))
        result.append(Requirement(convergence(norm), Measured(loss_at_end, cell), settings.min_converged))
    return result


def loss_fall(row: Row) -> float | None:
    """Return the training style loss of the first evaluation interval divided by that of the last one; None if the run failed."""
    losses = row["curves"].get("train_style_loss")
    return losses[0] / losses[-1] if losses and not row["failure"] else None


def content_correlation(row: Row) -> float | None:
    """Return the correlation in % of the normalized features of pictures and photos; None if the run failed.

    Features of mean 0 and variance 1 with the correlation ρ have the mean squared error 2 (1 − ρ).
    """
    return None if row["failure"] else 100 * (1 - row["test_normalized_content_loss"] / 2)


def loss_at_end(row: Row) -> float | None:
    """Return the held-out style loss of the end, in % of that after two thirds of the training; None if the run failed."""
    losses = row["curves"].get("test_style_loss")
    return 100 * losses[-1] / losses[2 * len(losses) // 3 - 1] if losses and not row["failure"] else None


def claims(_: SaStyleSettings) -> list[Claim]:
    """Return the orders of Fig. 7, and what becomes of them against targets that all norms share."""
    result: list[Claim] = []
    for split, name in SPLITS.items():
        for loss in ("content_loss", "style_loss"):
            others = ("AdaIN", "ILM+IN") if split == "train" else ("AdaIN",)
            for other in others:
                source = Source("sabn", f"Fig. 7{'a' if split == 'train' else 'b'}")
                quantity, group = f"the {name} {LOSSES[loss]}", f"{LOSSES[loss]} of SaAdaIN and {other}"
                result.append(_lower("SaAdaIN", other, f"{split}_{loss}", quantity, source, group))
    for norm in ("SaAdaIN", "SaAdaIN detached"):
        for loss in ("adain_content_loss", "normalized_content_loss"):
            group = f"content of {norm} and AdaIN, common targets"
            result.append(_lower(norm, "AdaIN", f"test_{loss}", f"the held-out {LOSSES[loss]}", OURS, group))
    result.append(_lower("SaAdaIN detached", "AdaIN", "test_style_loss", "the held-out style loss", OURS))
    result.append(_lower("SaAdaIN", "SaAdaIN detached", "test_content_loss", "the held-out content loss", OURS))
    return result


def _lower(norm: str, other: str, column: str, quantity: str, source: Source, group: str = "") -> Larger:
    """Return the claim that a loss is lower with a norm than with another one, as a ratio."""
    return Larger(
        statement=f"{quantity} of {other} is larger than that of {norm}",
        source=source,
        larger=Measured(column, {"norm": other}),
        smaller=Measured(column, {"norm": norm}),
        scale=RATIO,
        group=group,
        requires=tuple(control(each) for control in (fall, content, convergence) for each in (norm, other)),
    )


def tables(record: RecipeRecord[SaStyleSettings]) -> list[Table]:
    """Return the losses by norm."""
    columns = {"training content": "train_content_loss", "training style": "train_style_loss"}
    columns |= {f"held-out {LOSSES[loss].replace(' loss', '')}": f"test_{loss}" for loss in LOSSES}
    rows = metric_rows(record.rows, "norm", record.settings.norms, columns)
    return [
        Table(rows, "Losses, mean ± sd over seeds; training losses are means over the steps since the last evaluation but one.")
    ]


def plot(record: RecipeRecord[SaStyleSettings], path: Path) -> list[Path]:
    """Plot the losses against the steps, and the pictures."""
    panels = {
        f"{split}_{loss}": f"{name} {LOSSES[loss]}" for split, name in SPLITS.items() for loss in ("content_loss", "style_loss")
    }
    norms = record.settings.norms
    return draw_losses(record, path, norms, panels) + draw_pictures(record, path, norms)


RECIPE = Recipe("sabn_style", PRESETS, cells, measure, claims, plot, tables, controls)
