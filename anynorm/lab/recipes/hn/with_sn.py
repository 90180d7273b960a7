"""hn Table 7: HN combined with SN.

    anynorm reproduce hn_with_sn --preset night

Paper: ResNet-18 on Caltech-256, batch sizes 128 and 4. HN takes its mean from BN; its variance is mixed from several norms with
learned weights, as in SN: `bn/bn+en`, `bn/bn+ln+in`.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 and 2; a
           demonstration, which decides nothing unless its controls hold
    night  37 breeds of pets at 32 × 32 pixels, ResNet-10, 2300 steps (`night.NIGHT_PETS`); batch sizes 32 and 4, 6 seeds
    paper  the published setting (`support.presets.CALTECH_256`); needs a folder caltech256/ with train/ and test/

Scaled down in `desk` and `night`: other data than the paper's, and a small network. `night` has the runs of `hn_caltech256`.
"""

from __future__ import annotations

from anynorm.lab.recipes.hn.caltech256 import same_runs
from anynorm.lab.recipes.hn.night import NIGHT_PETS, NIGHT_PETS_ACCURACY
from anynorm.lab.recipes.support.claims import Check, Claim, Source
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe, order_claims
from anynorm.lab.recipes.support.presets import CALTECH_256, DESK, SMOKE

NORMS = ("bn", "hn", "sn", "bn/bn+en", "bn/bn+ln+in")
PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, norms=NORMS, batch_sizes=(32, 4)),
    "desk": NormGrid(seeds=3, training=DESK, norms=NORMS, batch_sizes=(32, 2)),
    "night": NormGrid(
        seeds=6,
        training=NIGHT_PETS,
        norms=NORMS,
        batch_sizes=(32, 4),
        min_train_accuracy=NIGHT_PETS_ACCURACY,
    ),
    "paper": NormGrid(seeds=3, training=CALTECH_256, norms=NORMS, batch_sizes=(128, 4), min_train_accuracy=50.0),
}
LARGE_BATCH = {"bn": 56.39, "hn": 56.32, "sn": 58.44, "bn/bn+en": 57.95, "bn/bn+ln+in": 58.65}
SMALL_BATCH = {"bn": 58.51, "hn": 59.49, "sn": 58.60, "bn/bn+en": 59.81, "bn/bn+ln+in": 61.15}
"""The paper's accuracy in % at batch sizes 128 and 4."""


def claims(settings: NormGrid) -> list[Claim | Check]:
    """Return the orders of the table: a mixed variance is better than either of its parts, and (BN, BN+IN+LN) is best."""
    source = Source("hn", "Table 7")
    pairs = [("bn/bn+en", "bn"), ("bn/bn+en", "hn"), *(("bn/bn+ln+in", other) for other in NORMS[:-1])]
    large, small = settings.batch_sizes
    same = same_runs("hn", "bn", small)
    return [
        *order_claims(settings, [*pairs, ("sn", "bn")], LARGE_BATCH, large, source),
        *order_claims(settings, pairs, SMALL_BATCH, small, source),
        *order_claims(settings, [("hn", "bn")], SMALL_BATCH, small, source, group=same),
    ]


RECIPE = norm_grid_recipe("hn_with_sn", PRESETS, claims, "hn Table 7, on other data")
