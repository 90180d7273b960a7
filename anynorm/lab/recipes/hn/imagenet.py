"""hn Table 6 and Fig. 5: BN, GN and HN on ImageNet with 64 and 4 images per device.

    anynorm reproduce hn_imagenet --preset paper

Paper: ResNet-18 on ImageNet, four devices with statistics of their own, batch sizes 256 and 16 in total, learning rate 0.1 at
256, weight decay 0.0001, 100 epochs.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    paper  the published setting, complete; needs a folder imagenet/ with train/ and test/

There is no `desk` preset: on small images it would repeat `hn_sn` and `bgn_batch_size`, which have these norms on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe, order_claims
from anynorm.lab.recipes.support.presets import IMAGENET_100, SMOKE

PAPER = replace(IMAGENET_100, config=replace(IMAGENET_100.config, model="resnet18", devices=4))
PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, batch_sizes=(32, 2), norms=("bn", "gn:8", "hn")),
    "paper": NormGrid(seeds=3, training=PAPER, batch_sizes=(64, 4), norms=("bn", "gn:32", "hn")),
}
LARGE_BATCH = {"bn": 70.37, "gn:": 68.77, "hn": 70.12}
SMALL_BATCH = {"bn": 65.78, "gn:": 69.08, "hn": 68.54}
"""The paper's accuracy in % with 64 and 4 images per device. `gn:` has 32 groups there."""


def claims(settings: NormGrid) -> list[Claim]:
    """Return the orders of the table: BN, HN, GN at the large batch size, and GN, HN, BN at the small one."""
    large, small = settings.batch_sizes
    result = order_claims(settings, [("bn", "hn"), ("hn", "gn:")], LARGE_BATCH, large)
    return result + order_claims(settings, [("gn:", "hn"), ("hn", "bn")], SMALL_BATCH, small)


RECIPE = norm_grid_recipe("hn_imagenet", PRESETS, claims, "hn Table 6")
