"""bgn Table 2 and sn Table 2: nine norms against the batch size.

    anynorm reproduce bgn_batch_size --preset desk        (data: CIFAR-10)

The papers train ResNet-50 on ImageNet: bgn with 128 to 2 images a device, learning rate 0.1 for 32 and 120 epochs; sn with 32
to 2, 0.1 for 256 and 100 epochs. `desk` scales that down to `anynorm.recipes.support.presets.DESK`: 5000 images of CIFAR-10 at 8 × 8 pixels,
three epochs, a residual network of one block a stage, batches of 32, 8 and 2, the rate scaled linearly. Channels are 16 to 128,
so groups are 8 where the papers have 32. What is claimed is the ordering, not the numbers: a small network on tiny images.
GBGN has the whole batch in a group, as in the paper, and so is EN with 8 groups. IN is refused on the last maps of 1 × 1, where
its deviation would be 0: its runs are told as failed (`hn_grid` has IN, on larger maps); inside SN its mean there is the value
itself. The GBGN of `paper` has 32 groups of channels.

`paper` is bgn's setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with `train`
and `test`). `smoke` claims nothing. `desk` took 18 minutes on two cores.
"""

from __future__ import annotations

from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.norm_grid import sweep
from anynorm.recipes.support.presets import DESK, IMAGENET, SMOKE, better, fall
from anynorm.recipes.support.recipe import Settings

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 2], "norms": ["bn", "in", "ln", "gn:8", "bgn", "sn", "hn"]},
    "desk": DESK | {"batch_sizes": [32, 8, 2], "norms": ["bn", "in", "ln", "gn:8", "pn", "en:8", "bgn", "sn", "hn"]},
    "paper": IMAGENET
    | {"batch_sizes": [128, 64, 32, 16, 8, 4, 2], "norms": ["bn", "in", "ln", "gn:32", "pn", "en:32", "bgn", "sn", "hn"]},
}

OTHERS = {
    "in": "76.10 and 70.51",
    "ln": "76.10 and 75.44",
    "gn": "76.10 and 75.87",
    "pn": "76.59 and 74.17, mean of all batch sizes",
    "en": "76.10 and 71.86",
}
"""Table 2 at batch 2; `en` with groups is GBGN."""


def claims(settings: Settings) -> list[Claim]:
    """List the orderings that the papers find."""
    large, small = settings["batch_sizes"][0], settings["batch_sizes"][-1]
    named = {norm.partition(":")[0]: norm for norm in settings["norms"]}
    holds = {
        "gn": ("bgn: 75.87 and 66.51; sn: 75.9 and 65.3", "bgn: 10.3 and -0.1; sn: 11.1 and 0.0"),
        "sn": ("sn: 75.6 and 65.3", "sn: 11.1 and 1.3"),
        "bgn": ("bgn: 76.10 and 66.51", "bgn: 10.3 and 0.9"),
        "hn": ("hn Fig. 2, CIFAR-10, batch 4: 94.93 and 84.59", "hn, batch 128 to 4: 10.46 and 0.25"),
    }
    found = [better(named[name], "bn", paper, batch_size=small) for name, (paper, _) in holds.items()]
    for name, (_, paper) in holds.items():
        says = f"`bn` loses more points from batch {large} to {small} than `{named[name]}`"
        found.append(Claim(says, paper, fall(large, small, norm="bn"), fall(large, small, norm=named[name])))
    found.append(better("bn", named["gn"], "bgn: 76.83 and 75.78; sn: 76.4 and 75.9", batch_size=large))
    found.append(better("sn", "bn", "sn: 76.9 and 76.4", batch_size=large))
    found.append(better("bgn", "bn", "bgn: 77.01 and 76.83", batch_size=large))
    for name, paper in OTHERS.items():
        if name in named:
            found.append(better("bgn", named[name], f"bgn: {paper}", batch_size=small))
    return found


RECIPE = sweep("bgn_batch_size", PRESETS, claims, "bgn Table 2, sn Table 2")
