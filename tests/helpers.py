"""Helpers of the tests: the specs of the common tests, norms and conditions for them, random data, and assertions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import anynorm
from anynorm.layers.norm import Norm

CHANNELS = 16
MIXED = [
    "en",
    "bgn:2",
    "bgn:32",
    "gbgn:2,4",
    "gbgn:2,16",
    "gn:4",
    "en:4",
    "hn:4",
    "gn:4/en",
    "pn/bgn:32",
    "in+ln",
    "sn:4.hard",
    "bn.none",
    "ssn:2",
    "gw:1",
    "modenorm:3.none",
    "brn.none",
    "0/bn.nobias",
    "0/in+ln",
    "0/bn+ln",
]
CONDITIONED = ["hn.sa@3", "gn:4.cc@3", "bn.dom@3", "bgn:32.saaux@3", "sn.aux@3", "ln.style"]


def rows() -> list[str]:
    """Return the spec of every norm of the zoo with numbers that fit 16 channels, and combinations of norms."""
    small = {"gn:32": "gn:8", "en:32": "en:8", "bgn:512": "bgn:64", "gbgn:8,32": "gbgn:4,8", "hn:32": "hn:8", "ln+gn": "ln+gn:4"}
    small |= {"ilmgn:32": "ilmgn:4", "gw:32": "gw:4", "gwzca:32": "gwzca:4"}
    listed = [small.get(entry.spec, entry.spec).replace("@10", "@3") for entry in anynorm.zoo()]
    return [*listed, *(spec for spec in MIXED + CONDITIONED if spec not in listed)]


ROWS = rows()


def make(spec: str, **options) -> Any:
    """Make a norm whose parameters (γ, β and mixing weights λ) differ from their initial values."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    norm = anynorm.make(spec, options.pop("channels", CHANNELS), **options)
    with torch.no_grad():
        for tensor in norm.parameters():
            tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor))
    norm.set_total_steps(4)  # so that norms with a schedule are in the middle of it after one batch
    return norm


def condition_for(norm: Norm, x: Tensor):
    """Return a condition for a norm: two alternating classes or domains, a style of another spatial size, or None."""
    if norm.norm_spec.num_classes:
        return torch.arange(len(x)) % min(norm.norm_spec.num_classes, 2)
    if norm.norm_spec.takes_style:
        generator = torch.Generator().manual_seed(2)
        return torch.randn(len(x), norm.num_features, 3, 5, generator=generator, dtype=torch.float64).to(x.dtype) * 2 + 1
    return None


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, mean: float = 0.7, std: float = 1.8) -> Tensor:
    """Return normally distributed random data with nonzero mean and a different standard deviation per channel."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    size = torch.linspace(0.5, 2, shape[1], dtype=torch.float64).reshape(1, -1, *(1 for _ in shape[2:]))
    return (mean + std * size * x).to(dtype)


def same(actual, expected, **tolerance) -> None:
    """Assert that values are equal within torch's default tolerance for their dtype."""
    torch.testing.assert_close(actual, expected, **tolerance)


def same_state(actual: nn.Module, expected: nn.Module) -> None:
    """Assert that the state dicts of two modules have the same keys and values."""
    assert list(actual.state_dict()) == list(expected.state_dict())
    for key, value in expected.state_dict().items():
        same(actual.state_dict()[key], value)


def without_space(code: str) -> str:
    """Return the lines of code without indentation and blank lines, which `ruff format` changes on a page."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
