"""hn Table 7: HN and SN together: the variance learned among several.

    anynorm reproduce hn_with_sn --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on Caltech-256 at batch 128 and 4. `desk` takes CIFAR-10 instead and scales down to
`anynorm.recipes.support.presets.DESK`, batch 32 and 2.

`paper` is the published setting (data: a folder `caltech256` with `train` and `test`, 80 and 20 % of the images, all of them in
memory). `smoke` claims nothing. `desk` took 11 minutes on two cores.
"""

from __future__ import annotations

from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.norm_grid import sweep
from anynorm.recipes.support.presets import CIFAR, DESK, SMOKE, better
from anynorm.recipes.support.recipe import Settings

NORMS = ["bn", "hn", "sn", "bn/bn+en", "bn/bn+ln+in"]
CALTECH: Settings = CIFAR | {"train": CIFAR["train"] | {"data": "folder:caltech256", "image_size": 224}}
PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"norms": NORMS, "batch_sizes": [32, 4]},
    "desk": DESK | {"norms": NORMS, "batch_sizes": [32, 2]},
    "paper": CALTECH | {"norms": NORMS, "batch_sizes": [128, 4]},
}


def claims(settings: Settings) -> list[Claim]:
    """List the orderings of the table."""
    large, small = settings["batch_sizes"]
    return [
        better("hn", "bn", "59.49 and 58.51", batch_size=small),
        better("bn/bn+en", "hn", "59.81 and 59.49", batch_size=small),
        better("bn/bn+en", "bn", "59.81 and 58.51", batch_size=small),
        better("bn/bn+ln+in", "sn", "61.15 and 58.60", batch_size=small),
        better("bn/bn+en", "bn", "57.95 and 56.39", batch_size=large),
        better("sn", "bn", "58.44 and 56.39", batch_size=large),
        better("bn/bn+ln+in", "bn/bn+en", "58.65 and 57.95", batch_size=large),
    ]


RECIPE = sweep("hn_with_sn", PRESETS, claims, "hn Table 7, on CIFAR-10")
