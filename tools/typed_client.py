"""A program that uses the public names with types; `mypy --strict` must accept it against the installed package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anynorm


class Block(nn.Module):
    """A convolution and a norm named by a spec."""

    def __init__(self, spec: str, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm: anynorm.Norm = anynorm.make(spec, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized convolution of x."""
        y: Tensor = self.norm(self.conv(x))
        return y


def change_norms(model: nn.Module, example: Tensor) -> list[str]:
    """Convert, recalibrate and fold the norms of a model, and return what was reported."""
    converted = anynorm.convert(model, "hn:4")
    recalibrated = anynorm.recalibrate(model, [example])
    folded = anynorm.fold(model, example)
    findings: list[str] = [converted.finding, recalibrated.finding, folded.finding]
    return findings


def read_error(spec: str) -> str:
    """Return the message for a spec that does not exist."""
    try:
        anynorm.make(spec, 8)
    except anynorm.AnynormError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    change_norms(Block("bn", 8).eval(), torch.randn(2, 8, 4, 4))
