"""hn Table 5: seven norms on Caltech-256 at a large and a small batch size.

    anynorm reproduce hn_caltech256 --preset night

Paper: ResNet-18 on Caltech-256 (256 classes, 30607 images of 224 × 224 pixels, 80 % for training), batch sizes 128 and 4,
learning rate 0.1 at 128, 200 epochs.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   pets, not Caltech-256: 1480 images of 37 breeds at 16 × 16 pixels, ResNet-10, 4 epochs; batch sizes 32 and 4; a
           demonstration, which decides nothing unless its controls hold
    night  pets at 32 × 32 pixels, 2300 steps at both batch sizes, until the networks have learned (`night.NIGHT_PETS`); without
           IN and LN, 6 seeds
    paper  the published setting (`support.presets.CALTECH_256`); needs a folder caltech256/ with train/ and test/

`desk` and `night` are stand-ins on other data: a folder pets/ with 40 images per breed in train/ and 20 in test/, central squares
of Oxford-IIIT Pet. Like Caltech-256 it has many classes of few images. Norms have 8 groups instead of 32. After the 4 epochs of
`desk` accuracies are 5 to 10 % (chance: 2.7 %).

Folders are searched in the working directory and in the data directory (ANYNORM_DATA). Images of one channel are read with three
equal channels. In `paper`, training and test images are central squares of 224 × 224 pixels; training images are also shifted by
up to 2 pixels and flipped.
"""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.hn.night import NIGHT_PETS, NIGHT_PETS_ACCURACY
from anynorm.lab.recipes.support.claims import Check, Claim, Source
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe, order_claims
from anynorm.lab.recipes.support.presets import CALTECH_256, DESK, SMOKE

PETS = replace(DESK, config=replace(DESK.config, data="folder:pets", image_size=16, num_train=1480, num_test=740, epochs=4))
PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, batch_sizes=(32, 8), norms=("bn", "sn", "hn", "hn:8")),
    "desk": NormGrid(seeds=3, training=PETS, batch_sizes=(32, 4), norms=("bn", "in", "ln", "gn:8", "sn", "hn", "hn:8")),
    "night": NormGrid(
        seeds=6,
        training=NIGHT_PETS,
        batch_sizes=(32, 4),
        norms=("bn", "gn:8", "sn", "hn", "hn:8"),
        min_train_accuracy=NIGHT_PETS_ACCURACY,
    ),
    "paper": NormGrid(
        seeds=3,
        training=CALTECH_256,
        batch_sizes=(128, 4),
        norms=("bn", "in", "ln", "gn:32", "sn", "hn", "hn:32"),
        min_train_accuracy=50.0,
    ),
}
LARGE_BATCH = {"bn": 56.39, "in": 51.52, "ln": 49.69, "gn:": 53.69, "sn": 58.44, "hn": 56.32, "hn:": 57.14}
SMALL_BATCH = {"bn": 58.51, "in": 51.64, "ln": 51.15, "gn:": 55.49, "sn": 58.60, "hn": 59.49, "hn:": 60.16}
"""The paper's accuracy in % at batch sizes 128 and 4. `hn:` has 32 groups there, and `gn:` in our preset."""


def claims(settings: NormGrid) -> list[Claim | Check]:
    """Return what the paper reads from the table.

    At the large batch size SN is best and HN with groups second; at the small one both HN are better than all others.
    """
    (large, small), source = settings.batch_sizes, Source("hn", "Table 5")
    pairs = [("sn", "hn:"), *(("hn:", other) for other in ("bn", "in", "ln", "gn:", "hn"))]
    result = order_claims(settings, pairs, LARGE_BATCH, large, source)
    others = ("in", "ln", "gn:", "sn")
    pairs = [("hn:", "bn"), *((norm, other) for norm in ("hn", "hn:") for other in others)]
    result += order_claims(settings, [("hn", "bn")], SMALL_BATCH, small, source, group=same_runs("hn", "bn", small))
    return result + order_claims(settings, pairs, SMALL_BATCH, small, source)


def same_runs(norm: str, other: str, batch_size: int) -> str:
    """Return the group of a claim that `hn_caltech256` and `hn_with_sn` make about the same runs."""
    return f"hn `{norm}` > `{other}`, batch {batch_size}, same runs in hn_caltech256 and hn_with_sn"


RECIPE = norm_grid_recipe("hn_caltech256", PRESETS, claims, "hn Table 5, on 37 breeds of pets")
