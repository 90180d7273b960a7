"""bgn Table 2 (contribution 1): BN saturates at extremely large batch sizes, BGN does not.

    anynorm reproduce bgn_saturation --preset night

Paper: ResNet-50 on ImageNet; from 64 to 128 images per device BN stays at 76.832 %, where from 32 to 64 it gains 0.18 points. The
paper's explanation is that statistics of many samples are "confused". BGN itself loses 0.1 points from 64 to 128 (77.104 to
77.008) and is above BN at both. 128 was the limit of the authors' memory: "a large batch size of 128 has not reached the
saturation edge yet" is one of their two readings.

    smoke  64 digits, two epochs; checks that the code works and claims nothing
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 30 epochs; statistics of 512, 256, 128 and 64 images; G of BGN
           chosen on validation data for each. Numbers are subject to a pilot until a record exists
    paper  the published setting (`support.presets.IMAGENET`) at 128, 64 and 32 images per device

In `night` all batch sizes have the same optimizer steps of 512 images: smaller batches accumulate gradients. So batch
sizes differ in the samples of a statistic alone, not in the number of steps or the learning rate. The paper's steps differ.
"""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.bgn.batch_size import TABLE_2
from anynorm.lab.recipes.bgn.group_choice import GroupSweep
from anynorm.lab.recipes.bgn.norm_grid import GroupedNormGrid, grouped_norm_grid_recipe
from anynorm.lab.recipes.support.claims import OURS, Check, Claim, Equivalent, Larger, Published, Source, more_accurate
from anynorm.lab.recipes.support.norm_grid import controls
from anynorm.lab.recipes.support.presets import IMAGENET, NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import accuracy_of

STEP = 512
"""Images per optimizer step at all batch sizes."""
PRESETS = {
    "smoke": GroupedNormGrid(
        seeds=2,
        training=replace(SMOKE, config=replace(SMOKE.config, epochs=2), samples_per_step=32),
        batch_sizes=(32, 16),
        norms=("bn", "bgn"),
        groups=GroupSweep((4, 1), seeds=1),
        num_validation=400,
    ),
    "night": GroupedNormGrid(
        seeds=8,
        training=replace(
            NIGHT, config=replace(NIGHT.config, epochs=30), samples_per_step=STEP, base_batch_size=STEP, lrs={"bgn": 0.1}
        ),
        batch_sizes=(512, 256, 128, 64),
        norms=("bn", "bgn"),
        groups=GroupSweep((512, 256, 64, 16)),
        min_train_accuracy=40.0,
    ),
    "paper": GroupedNormGrid(seeds=3, training=IMAGENET, batch_sizes=(128, 64, 32), norms=("bn", "bgn"), min_train_accuracy=30.0),
}
SOURCE = Source("bgn", "contribution 1", "BN saturates at extreme large batch sizes: 76.832 at 64 and at 128 images")
GROUP = "accuracy against batch size"


def claims(settings: GroupedNormGrid) -> list[Claim | Check]:
    """Return that BN does not gain from larger batches, that BGN is above it, and, for comparison, what BGN gains."""
    bgn = next(norm for norm in settings.norms if norm.startswith("bgn"))
    sizes = settings.batch_sizes
    large, small = sizes[0], sizes[-1]
    result: list[Claim | Check] = []
    pairs = [(128, 64)] if {128, 64} <= set(sizes) else []
    for first, second in dict.fromkeys([*pairs, *([] if sizes[-1] == 32 else [(large, small)])]):
        result.append(
            Equivalent(
                statement=f"`bn` is as accurate at batch {first} as at batch {second}: it saturates",
                source=SOURCE,
                published=Published(TABLE_2["bn"][128], TABLE_2["bn"][64]),
                first=accuracy_of(norm="bn", batch_size=first),
                second=accuracy_of(norm="bn", batch_size=second),
                delta=0.5,
                group=f"bn, {GROUP}",
            )
        )
    for size in sizes:
        published = Published(TABLE_2["bgn"][size], TABLE_2["bn"][size]) if size in TABLE_2["bn"] else None
        claim = more_accurate(bgn, "bn", Source("bgn", "contribution 1"), published, batch_size=size)
        result.append(replace(claim, group="bgn against bn at large batches"))
    sides = [accuracy_of(norm=bgn, batch_size=large) - accuracy_of(norm="bn", batch_size=large)]
    sides.append(accuracy_of(norm=bgn, batch_size=small) - accuracy_of(norm="bn", batch_size=small))
    result.append(
        Larger(
            statement=f"`{bgn}` gains more on `bn` at batch {large} than at batch {small}",
            source=OURS,
            larger=sides[0],
            smaller=sides[1],
            group="bgn against bn at large batches",
        )
    )
    return result


RECIPE = grouped_norm_grid_recipe("bgn_saturation", PRESETS, claims, "bgn: saturation of BN", controls)
