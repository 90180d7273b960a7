"""Compare `anynorm.lab.attacks` with torchattacks: without a random start, adversarial images must be bit-identical.

    pip install --no-deps --target build/torchattacks torchattacks==3.5.1
    PYTHONPATH=build/torchattacks python -m tools.check_torchattacks

torchattacks is installed separately and without its dependencies: it requires torchvision and an old version of requests, which
these attacks do not use. Random starts are not compared, because the two packages use different random generators.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from anynorm.lab.attacks import FGSM, PGD, Attack
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.training.norm_layout import Layout

NORMS = ("bn", "gn:4", "sn", "modenorm:2")


def largest_differences(torchattacks: Any) -> dict[str, float]:
    """Return the largest absolute difference of adversarial images by norm, mode of the norms, and attack.

    Args:
        torchattacks: the imported package torchattacks.
    """
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(16, 3, 16, 16, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    differences = {}
    for norm in NORMS:
        for norm_mode in ("eval", "train"):
            pairs: dict[str, tuple[Attack, Any]] = {
                "fgsm": (FGSM(norm_mode=norm_mode), lambda model: torchattacks.FGSM(model, eps=8 / 255)),
                "pgd:10": (
                    PGD(10, norm_mode=norm_mode, random_start=False),
                    lambda model: torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=10, random_start=False),
                ),
            }
            for name, (ours, theirs) in pairs.items():
                expected = _attack_by_torchattacks(theirs, _model(norm), images, labels, norm_mode)
                difference = (ours(_model(norm), images, labels) - expected).abs().max()
                differences[f"{norm}, {norm_mode} mode, {name}"] = float(difference)
    return differences


def _model(norm: str) -> torch.nn.Module:
    """Return a network with a norm, after one forward pass in train mode that updates the running statistics."""
    torch.manual_seed(0)
    model = Layout.parse(norm, 16).apply(build_model("small", DataShape(3, 16, 16, 10), 0.5))
    with torch.no_grad():
        model(torch.rand(16, 3, 16, 16))
    return model


def _attack_by_torchattacks(make: Any, model: torch.nn.Module, images: Tensor, labels: Tensor, norm_mode: str) -> Tensor:
    """Return the adversarial images of torchattacks, which sets the mode itself and changes running statistics in train mode."""
    model.train(norm_mode == "train")
    attack = make(model)
    attack.set_model_training_mode(model_training=norm_mode == "train", batchnorm_training=norm_mode == "train")
    adversarial: Tensor = attack(images, labels)
    return adversarial


if __name__ == "__main__":
    results = largest_differences(import_module("torchattacks"))
    for name, difference in results.items():
        sys.stdout.write(f"{name}: {difference:g}\n")
    sys.exit(int(any(results.values())))
