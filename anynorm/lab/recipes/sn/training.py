"""The published training of sn on ImageNet, and the smallest training accuracy of networks that have learned."""

from __future__ import annotations

from anynorm.lab.recipes.support.presets import IMAGENET_100, NIGHT_ACCURACY

IMAGENET_SN = IMAGENET_100
"""It has the initialization of He et al. (App. C.1)."""
LEARNED_DESK, LEARNED_NIGHT, LEARNED_PAPER = 25.0, NIGHT_ACCURACY, 40.0
"""Smallest training accuracy in %: 2.5 and 4.5 times chance on CIFAR-10; on ImageNet, BN at (8, 2) has 65 % test accuracy."""
