"""hn Table 2 and Fig. 4: SN and HN against the batch size.

    anynorm reproduce hn_sn --preset desk

Paper: ResNet-18 on CIFAR-10, batch sizes 128 to 2.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 to 2
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: a small network on tiny images, so the claims are about the order of the two norms.
"""

from __future__ import annotations

from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe
from anynorm.lab.recipes.support.presets import CIFAR10, DESK, SMOKE

PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, norms=("sn", "hn"), batch_sizes=(32, 2)),
    "desk": NormGrid(seeds=3, training=DESK, norms=("sn", "hn"), batch_sizes=(32, 16, 8, 4, 2)),
    "paper": NormGrid(seeds=3, training=CIFAR10, norms=("sn", "hn"), batch_sizes=(128, 64, 32, 16, 8, 4, 2)),
}
TABLE_2 = {
    128: {"hn": 95.18, "sn": 94.68},
    64: {"hn": 95.32, "sn": 94.70},
    32: {"hn": 95.17, "sn": 95.08},
    16: {"hn": 95.02, "sn": 94.82},
    8: {"hn": 94.99, "sn": 95.09},
    4: {"hn": 94.93, "sn": 94.61},
    2: {"hn": 94.57, "sn": 93.99},
}
"""The paper's accuracy in % by batch size."""


def claims(settings: NormGrid) -> list[Claim]:
    """Return the order in the table at each batch size: HN is better except at 8."""
    result = []
    for size in settings.batch_sizes:
        paper = TABLE_2[size]
        better, worse = sorted(paper, key=lambda norm: -paper[norm])
        result.append(more_accurate(better, worse, f"{paper[better]:.2f} and {paper[worse]:.2f}", batch_size=size))
    return result


RECIPE = norm_grid_recipe("hn_sn", PRESETS, claims, "hn Table 2")
