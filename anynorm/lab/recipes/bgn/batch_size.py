"""bgn Table 2 and sn Table 2: nine norms against the batch size.

    anynorm reproduce bgn_batch_size --preset desk

Papers: ResNet-50 on ImageNet. bgn: 128 to 2 images per device, learning rate 0.1 at 32, 120 epochs. sn: 32 to 2 images per
device, 0.1 at 256, 100 epochs.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32, 8, 2
    paper  bgn's setting (`support.presets.IMAGENET`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: a small network on tiny images, so the claims are about the order of the norms, not about the numbers.
Channels are 16 to 128, so norms have 8 groups instead of 32. GBGN groups the whole batch, as in the paper, which makes it EN with
8 groups (`en:8`). IN is refused on the last maps of 1 × 1 pixels, where its variance would be 0: its runs are reported as failed
(`hn_grid` has IN, on larger maps). As a part of SN it is allowed there: its mean is the value itself.
"""

from __future__ import annotations

from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.norm_grid import NormGrid, norm_grid_recipe
from anynorm.lab.recipes.support.presets import DESK, IMAGENET, SMOKE
from anynorm.lab.recipes.support.rows import accuracy_drop

PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, batch_sizes=(32, 2), norms=("bn", "in", "ln", "gn:8", "bgn", "sn", "hn")),
    "desk": NormGrid(
        seeds=3,
        training=DESK,
        batch_sizes=(32, 8, 2),
        norms=("bn", "in", "ln", "gn:8", "pn", "en:8", "bgn", "sn", "hn"),
    ),
    "paper": NormGrid(
        seeds=3,
        training=IMAGENET,
        batch_sizes=(128, 64, 32, 16, 8, 4, 2),
        norms=("bn", "in", "ln", "gn:32", "pn", "en:32", "bgn", "sn", "hn"),
    ),
}
BETTER_THAN_BN = {
    # norm: (accuracies of the norm and of BN at batch 2, points that BN and the norm lose from the largest batch to the smallest)
    "gn": ("bgn: 75.87 and 66.51; sn: 75.9 and 65.3", "bgn: 10.3 and -0.1; sn: 11.1 and 0.0"),
    "sn": ("sn: 75.6 and 65.3", "sn: 11.1 and 1.3"),
    "bgn": ("bgn: 76.10 and 66.51", "bgn: 10.3 and 0.9"),
    "hn": ("hn Fig. 2, CIFAR-10, batch 4: 94.93 and 84.59", "hn, batch 128 to 4: 10.46 and 0.25"),
}
WORSE_THAN_BGN = {
    "in": "76.10 and 70.51",
    "ln": "76.10 and 75.44",
    "gn": "76.10 and 75.87",
    "pn": "76.59 and 74.17, mean of all batch sizes",
    "en": "76.10 and 71.86",
}
"""bgn Table 2 at batch 2: accuracies of BGN and of the norm. `en` with groups is GBGN."""


def claims(settings: NormGrid) -> list[Claim]:
    """Return the orders that the papers report at the largest and the smallest batch size."""
    large, small = settings.batch_sizes[0], settings.batch_sizes[-1]
    specs = {norm.partition(":")[0]: norm for norm in settings.norms}
    result = [more_accurate(specs[name], "bn", paper, batch_size=small) for name, (paper, _) in BETTER_THAN_BN.items()]
    for name, (_, paper) in BETTER_THAN_BN.items():
        statement = f"`bn` loses more points from batch {large} to {small} than `{specs[name]}`"
        drops = accuracy_drop(large, small, norm="bn"), accuracy_drop(large, small, norm=specs[name])
        result.append(Claim(statement, paper, *drops))
    result.append(more_accurate("bn", specs["gn"], "bgn: 76.83 and 75.78; sn: 76.4 and 75.9", batch_size=large))
    result.append(more_accurate("sn", "bn", "sn: 76.9 and 76.4", batch_size=large))
    result.append(more_accurate("bgn", "bn", "bgn: 77.01 and 76.83", batch_size=large))
    for name, paper in WORSE_THAN_BGN.items():
        if name in specs:
            result.append(more_accurate("bgn", specs[name], f"bgn: {paper}", batch_size=small))
    return result


RECIPE = norm_grid_recipe("bgn_batch_size", PRESETS, claims, "bgn Table 2, sn Table 2")
