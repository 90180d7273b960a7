"""Settings of the recipe `xbn_perturbation`."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.recipes.support.settings import Settings, Training


@dataclass(frozen=True, kw_only=True)
class PerturbationSettings(Settings):
    """Settings of perturbed running statistics.

    Args:
        data: "cifar10" or "digits".
        num_test: number of test images.
        num_fit: number of training images to which the inserted norms are fitted.
        depth: depth of the ResNet.
        num_blocks: number of first blocks whose norms are perturbed.
        deltas: magnitudes Δ of the noise.
        norms: the norm that is inserted, "bn" for none.
        positions: "first" and "second" norm of a block.
        num_draws: number of draws of the noise.
        training: how the networks are trained; None for a pretrained network and its conversions.
    """

    data: str
    num_test: int = 2000
    num_fit: int
    depth: int
    num_blocks: int
    deltas: tuple[float, ...]
    norms: tuple[str, ...]
    positions: tuple[str, ...]
    num_draws: int
    training: Training | None = None

    @property
    def num_devices(self) -> int:
        """The number of devices that train one run together."""
        return 1 if self.training is None else self.training.config.devices
