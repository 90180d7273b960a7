"""hn Table 7: HN combined with SN.

    anynorm reproduce hn_with_sn --preset desk

Paper: ResNet-18 on Caltech-256, batch sizes 128 and 4. HN takes its mean from BN; its variance is mixed from several norms with
learned weights, as in SN: `bn/bn+en`, `bn/bn+ln+in`.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 and 2
    paper  the published setting (`support.presets.CALTECH_256`); needs a folder caltech256/ with train/ and test/

Scaled down in `desk`: other data than the paper's, and a small network. The claims are about the order of the norms.
"""

from __future__ import annotations

from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe
from anynorm.lab.recipes.support.presets import CALTECH_256, DESK, SMOKE

NORMS = ("bn", "hn", "sn", "bn/bn+en", "bn/bn+ln+in")
PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, norms=NORMS, batch_sizes=(32, 4)),
    "desk": NormGrid(seeds=3, training=DESK, norms=NORMS, batch_sizes=(32, 2)),
    "paper": NormGrid(seeds=3, training=CALTECH_256, norms=NORMS, batch_sizes=(128, 4)),
}


def claims(settings: NormGrid) -> list[Claim]:
    """Return the orders of the table."""
    large, small = settings.batch_sizes
    return [
        more_accurate("hn", "bn", "59.49 and 58.51", batch_size=small),
        more_accurate("bn/bn+en", "hn", "59.81 and 59.49", batch_size=small),
        more_accurate("bn/bn+en", "bn", "59.81 and 58.51", batch_size=small),
        more_accurate("bn/bn+ln+in", "sn", "61.15 and 58.60", batch_size=small),
        more_accurate("bn/bn+en", "bn", "57.95 and 56.39", batch_size=large),
        more_accurate("sn", "bn", "58.44 and 56.39", batch_size=large),
        more_accurate("bn/bn+ln+in", "bn/bn+en", "58.65 and 57.95", batch_size=large),
    ]


RECIPE = norm_grid_recipe("hn_with_sn", PRESETS, claims, "hn Table 7, on CIFAR-10")
