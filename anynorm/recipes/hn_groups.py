"""hn Fig. 3: the groups of EN for the mean against those for the deviation, at a small batch.

    anynorm reproduce hn_groups --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on CIFAR-10 with EN of c, 32, 16, 8, 4 and 1 groups for either statistic (c groups are BN), at batch
128 and 4. `desk` scales that down to `anynorm.recipes.support.presets.FEWER`, batch 2, with c, 16, 4 and 1 groups.

`paper` is the published setting, complete. `smoke` claims nothing. `desk` took 17 minutes on two cores.
"""

from __future__ import annotations

from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.pair_grid import better, pairs
from anynorm.recipes.support.presets import CIFAR, FEWER, SMOKE
from anynorm.recipes.support.recipe import Settings

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [4], "cuts": ["bn", "en"]},
    "desk": FEWER | {"batch_sizes": [2], "cuts": ["bn", "en:16", "en:4", "en"]},
    "paper": CIFAR | {"batch_sizes": [128, 4], "cuts": ["bn", "en:32", "en:16", "en:8", "en:4", "en"]},
}
WIDER = {"bn": 84.59, "en:32": 95.04, "en:16": 94.95, "en:8": 95.17, "en:4": 94.72, "en": 94.93}
"""Fig. 3b, accuracy by the deviation, the mean of BN."""
MEANS = {"bn": 94.93, "en:32": 94.37, "en:16": 94.28, "en:8": 93.87, "en:4": 93.89, "en": 93.69}
"""The same by the mean, the deviation of EN."""


def claims(settings: Settings) -> list[Claim]:
    """List what the paper reads from its figure: a mean a channel, and a deviation over more, is best at a small batch."""
    size, cuts = settings["batch_sizes"][-1], settings["cuts"]
    wider = [better(("bn", std), ("bn", "bn"), size, f"{WIDER[std]} and {WIDER['bn']}") for std in cuts[1:]]
    return wider + [better(("bn", "en"), (mean, "en"), size, f"{MEANS['bn']} and {MEANS[mean]}") for mean in cuts[1:]]


RECIPE = pairs("hn_groups", PRESETS, claims)
