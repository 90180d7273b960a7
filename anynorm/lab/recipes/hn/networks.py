"""hn Table 3: HN in MobileNetV2, ShuffleNetV2 and DenseNet-121.

    anynorm reproduce hn_networks --preset desk

Paper: MobileNetV2 ×0.35 and ×1.0, ShuffleNetV2 ×1.5 and DenseNet-121 on CIFAR-10, batch size 128.

    smoke  64 digits, one epoch, MobileNetV2; checks that the code works and claims nothing
    desk   2500 images of CIFAR-10 at 16 × 16 pixels, 3 epochs at batch size 32; narrower networks
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: MobileNetV2 ×0.35, ShuffleNetV2 ×0.5 and DenseNet-121 ×0.25, trained for 234 steps. After so few steps some
networks with IN, LN and GN are still at chance, so the claims are about the start of training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.network_grid import Network, NetworkGrid, network_grid_recipe
from anynorm.lab.recipes.support.presets import CIFAR10, TINY_RESNET, tiny
from anynorm.lab.recipes.support.settings import Training

NORMS = {norm: norm for norm in ("bn", "in", "ln", "gn:8", "sn", "hn", "hn:8")}


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
    "paper": NetworkGrid(
        seeds=3,
        training=replace(CIFAR10, config=replace(CIFAR10.config, batch_size=128)),
        norms=NORMS,
        networks=networks(("mobilenetv2", 0.35), ("mobilenetv2", 1.0), ("shufflenetv2", 1.5), ("densenet121", 1.0)),
    ),
}
TABLE_3: dict[str, dict[str, Any]] = {
    "mobilenetv2 ×0.35": {"bn": 89.60, "in": 82.96, "ln": "failed", "gn:8": 80.40, "sn": 88.95, "hn": 89.91, "hn:8": 90.20},
    "mobilenetv2 ×1": {"bn": 90.92, "in": 87.42, "ln": 53.48, "gn:8": 84.93, "sn": 91.40, "hn": 91.49, "hn:8": 91.92},
    "shufflenetv2": {"bn": 91.40, "in": 86.83, "ln": 86.75, "gn:8": 86.99, "sn": 90.41, "hn": 92.64, "hn:8": 92.81},
    "densenet121": {"bn": 95.20, "in": 92.99, "ln": 86.69, "gn:8": 91.08, "sn": 94.39, "hn": 94.03, "hn:8": 95.11},
}
"""The paper's accuracy in %. ShuffleNetV2 and DenseNet-121 have one width, whatever width a preset has."""


def claims(settings: NetworkGrid) -> list[Claim]:
    """Return the orders of the table: HN beats BN and SN except in DenseNet-121, and BN beats IN, LN and GN."""
    result = []
    for network in settings.networks:
        paper = TABLE_3[network] if network in TABLE_3 else TABLE_3[network.partition(" ")[0]]
        if network.startswith("densenet"):
            pairs = [("bn", "hn"), ("bn", "sn")]
        else:
            pairs = [("hn:8", "bn"), ("hn", "bn"), ("hn:8", "sn"), ("hn", "sn")]
        pairs += [("bn", "in"), ("bn", "ln"), ("bn", "gn:8")]
        measured = [pair for pair in pairs if {*pair} <= settings.norms.keys()]
        result += [more_accurate(a, b, f"{paper[a]} and {paper[b]}", network=network) for a, b in measured]
    return result


RECIPE = network_grid_recipe("hn_networks", PRESETS, claims, "hn Table 3")
