"""hn Table 3: HN in MobileNetV2, ShuffleNetV2 and DenseNet-121.

    anynorm reproduce hn_networks --preset night

Paper: MobileNetV2 ×0.35 and ×1.0, ShuffleNetV2 ×1.5 and DenseNet-121 on CIFAR-10, batch size 128.

    smoke  64 digits, one epoch, MobileNetV2; checks that the code works and claims nothing
    desk   2500 images of CIFAR-10 at 16 × 16 pixels, 3 epochs at batch size 32; narrower networks; a demonstration, which
           decides nothing unless its controls hold
    night  20 000 images at 16 × 16 pixels, 12 epochs with warm-up at batch size 32: MobileNetV2 ×0.35 and ShuffleNetV2 ×0.5 with
           BN, GN, SN, HN and HN_G8, until GN has learned; 6 seeds
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: MobileNetV2 ×0.35, ShuffleNetV2 ×0.5 and DenseNet-121 ×0.25, trained for 234 steps. After so few steps
MobileNetV2 and ShuffleNetV2 with IN, LN and GN are still near chance.

HN_G8 has 8 groups, as in the paper, and so has GN, whose number it does not state; more do not divide the channels of all layers.
The first layers of MobileNetV2 ×0.35 have 8 channels: there GN with 8 groups is IN, and HN_G8 is BN. The paper does not say how
it adapts these networks to small images: the strides here are a choice of ours, see `models.mobilenet` and `models.shufflenet`.
The published numbers of ShuffleNetV2 and DenseNet-121 are those of ×1.5 and ×1, so in presets with other widths claims are about
the order only.
"""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.support.claims import Check, Claim, Equivalent, Published, Source, more_accurate
from anynorm.lab.recipes.support.network_grid import Network, NetworkGrid, network_grid_recipe
from anynorm.lab.recipes.support.presets import CIFAR10, NIGHT, NIGHT_ACCURACY, TINY_RESNET, tiny
from anynorm.lab.recipes.support.quantities import accuracy_of
from anynorm.lab.recipes.support.settings import Training

NORMS = {norm: norm for norm in ("bn", "in", "ln", "gn:8", "sn", "hn", "hn:8")}

SOURCE = Source("hn", "Table 3")


def networks(*models: tuple[str, float]) -> dict[str, Network]:
    """Return models and width multipliers by their label, such as "mobilenetv2 ×0.35"."""
    return {f"{model} ×{width:g}": Network(model, width) for model, width in models}


PRESETS = {
    "smoke": NetworkGrid(
        seeds=2,
        training=Training(replace(tiny(TINY_RESNET), batch_size=16), base_batch_size=32),
        norms={norm: norm for norm in ("bn", "ln", "hn", "hn:8")},
        networks=networks(("mobilenetv2", 0.35)),
    ),
    "desk": NetworkGrid(
        seeds=3,
        training=Training(
            replace(TINY_RESNET, data="cifar10@16", crop=2, num_train=2500, num_test=2500, batch_size=32), base_batch_size=32
        ),
        norms=NORMS,
        networks=networks(("mobilenetv2", 0.35), ("shufflenetv2", 0.5), ("densenet121", 0.25)),
    ),
    "night": NetworkGrid(
        seeds=6,
        training=Training(
            replace(NIGHT.config, epochs=12, lr=0.05, warmup_epochs=2, batch_size=32, num_evals=12),
            base_batch_size=32,
        ),
        norms={norm: norm for norm in ("bn", "gn:8", "sn", "hn", "hn:8")},
        networks=networks(("mobilenetv2", 0.35), ("shufflenetv2", 0.5)),
        min_train_accuracy=NIGHT_ACCURACY,
    ),
    "paper": NetworkGrid(
        seeds=3,
        training=replace(CIFAR10, config=replace(CIFAR10.config, batch_size=128)),
        norms=NORMS,
        networks=networks(("mobilenetv2", 0.35), ("mobilenetv2", 1.0), ("shufflenetv2", 1.5), ("densenet121", 1.0)),
        min_train_accuracy=40.0,
    ),
}
TABLE_3: dict[str, dict[str, float | None]] = {
    "mobilenetv2 ×0.35": {"bn": 89.60, "in": 82.96, "ln": None, "gn:8": 80.40, "sn": 88.95, "hn": 89.91, "hn:8": 90.20},
    "mobilenetv2 ×1": {"bn": 90.92, "in": 87.42, "ln": 53.48, "gn:8": 84.93, "sn": 91.40, "hn": 91.49, "hn:8": 91.92},
    "shufflenetv2 ×1.5": {"bn": 91.40, "in": 86.83, "ln": 86.75, "gn:8": 86.99, "sn": 90.41, "hn": 92.64, "hn:8": 92.81},
    "densenet121 ×1": {"bn": 95.20, "in": 92.99, "ln": 86.69, "gn:8": 91.08, "sn": 94.39, "hn": 94.03, "hn:8": 95.11},
}
"""The paper's accuracy in %; None where training failed."""
COMPARABLE = 0.5
"""Points within which accuracies are called comparable; HN_G8 and BN differ by 0.09 in DenseNet-121."""


def claims(settings: NetworkGrid) -> list[Claim | Check]:
    """Return the orders of the table.

    BN beats IN, LN and GN. HN_G8 and HN are the best and the second best, except in DenseNet-121, where BN is the best and HN_G8
    comparable to it. SN improves MobileNetV2 ×1 and degrades the others.
    """
    return [claim for network in settings.networks for claim in _claims_of_network(settings, network)]


def _claims_of_network(settings: NetworkGrid, network: str) -> list[Claim | Check]:
    model = network.partition(" ")[0]
    name = network if network in TABLE_3 else next(name for name in TABLE_3 if name.startswith(model))
    paper = TABLE_3[name]
    pairs = [("bn", "in"), ("bn", "ln"), ("bn", "gn:8"), ("sn", "bn") if name == "mobilenetv2 ×1" else ("bn", "sn")]
    if name.startswith("densenet"):
        pairs += [("bn", "hn")]
    else:
        pairs += [("hn:8", "hn"), ("hn:8", "bn"), ("hn", "bn"), ("hn:8", "sn"), ("hn", "sn")]
    result: list[Claim | Check] = []
    for a, b in pairs:
        if {a, b} <= settings.norms.keys():
            first, second = paper[a], paper[b]
            published = None if first is None or second is None or name != network else Published(first, second)
            claim = more_accurate(a, b, SOURCE, published, network=network)
            result.append(replace(claim, loser_may_fail=second is None))
    if name.startswith("densenet") and {"bn", "hn:8"} <= settings.norms.keys():
        result.append(
            Equivalent(
                statement=f"`hn:8` and `bn` are comparable (network {network})",
                source=SOURCE,
                published=Published(95.11, 95.20) if name == network else None,
                first=accuracy_of(norm="hn:8", network=network),
                second=accuracy_of(norm="bn", network=network),
                delta=COMPARABLE,
            )
        )
    return result


RECIPE = network_grid_recipe("hn_networks", PRESETS, claims, "hn Table 3")
