"""A typed program that uses the public names of anynorm; `mypy --strict` must accept it with the installed package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anynorm


class Block(nn.Module):
    """A convolution followed by a norm that is given as a spec."""

    def __init__(self, spec: str, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm: anynorm.Norm = anynorm.make(spec, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized convolution of x."""
        y: Tensor = self.norm(self.conv(x))
        return y


def change_norms(model: nn.Module, example: Tensor) -> list[str]:
    """Convert, recalibrate and fold the norms of a model, and return the findings of the three reports."""
    converted = anynorm.convert(model, "hn:4")
    recalibrated = anynorm.recalibrate(model, [example])
    folded = anynorm.fold(model, example)
    findings: list[str] = [converted.finding, recalibrated.finding, folded.finding]
    return findings


def define_norm() -> type[anynorm.Norm]:
    """Return a norm of one's own: statistics per sample, channel and half of the positions."""

    class HalfNorm(anynorm.RegisteredNorm):
        """A norm whose statistics are those of half of the positions."""

        name, paper = "halfnorm", "this program"
        define = staticmethod(lambda: anynorm.same_cut(anynorm.Cut(anynorm.ALL, anynorm.ALL, 2)))

    return HalfNorm


def measure_shift(model: nn.Module, batches: list[Tensor]) -> float:
    """Return the largest estimation shift of the norms of a model, with the kernels of the reference."""
    with anynorm.kernels.use("reference"):
        report: anynorm.diagnostics.DiagnosticReport = anynorm.diagnostics.estimation_shift(model, batches)
    return max(float(row["shift"]) for row in report)


def read_error(spec: str) -> str:
    """Return the error message of an invalid spec; "" if the spec is valid."""
    try:
        anynorm.make(spec, 8)
    except anynorm.AnynormError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    change_norms(Block("bn", 8).eval(), torch.randn(2, 8, 4, 4))
