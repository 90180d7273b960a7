"""hn Table 2 and Fig. 4: SN against HN over the batch size.

    anynorm reproduce hn_sn --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on CIFAR-10 at batch 128 to 2. `desk` scales that down to `anynorm.recipes.support.presets.DESK`, batch 32 to 2.

`paper` is the published setting, complete. `smoke` claims nothing. `desk` took 7 minutes on two cores.
"""

from __future__ import annotations

from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.norm_grid import sweep
from anynorm.recipes.support.presets import CIFAR, DESK, SMOKE, better
from anynorm.recipes.support.recipe import Settings

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"norms": ["sn", "hn"], "batch_sizes": [32, 2]},
    "desk": DESK | {"norms": ["sn", "hn"], "batch_sizes": [32, 16, 8, 4, 2]},
    "paper": CIFAR | {"norms": ["sn", "hn"], "batch_sizes": [128, 64, 32, 16, 8, 4, 2]},
}
PAPER = {128: (95.18, 94.68), 64: (95.32, 94.70), 32: (95.17, 95.08), 16: (95.02, 94.82), 8: (94.99, 95.09), 4: (94.93, 94.61)}
PAPER |= {2: (94.57, 93.99)}


def claims(settings: Settings) -> list[Claim]:
    """Claim what the table has: HN is better, but for batch 8."""
    found = []
    for size in settings["batch_sizes"]:
        hn, sn = PAPER[size]
        one, other = ("hn", "sn") if hn > sn else ("sn", "hn")
        found.append(better(one, other, f"{max(hn, sn):.2f} and {min(hn, sn):.2f}", batch_size=size))
    return found


RECIPE = sweep("hn_sn", PRESETS, claims, "hn Table 2")
