"""Random cuts and mixtures of cuts for any shape, and random passes of layers.

A pass is drawn from its seed and its number alone, so that the two numbers reproduce it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch

import anynorm
from anynorm.core.activation import MODULES
from anynorm.core.cuts import divisors
from anynorm.errors import AnynormError
from anynorm.registry import nearest_spec, parse

CHANNELS = (1, 2, 3, 4, 5, 6, 8, 8, 12, 16, 24)
LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
SAMPLES = (1, 2, 2, 3, 4, 4, 6, 8)
MAX_VALUES = 6000
VALUES = ("normal",) * 8 + ("offset", "constant", "tiny", "large", "infinite")
"""What x is like: a mean of 100 standard deviations, constant rows, a variance far below or above ε, an infinite value."""
ZOO = [entry.spec for entry in anynorm.zoo()]
SUFFIXES = [
    "",
    "",
    "",
    "",
    ".none",
    ".nobias",
    ".cc@3",
    ".sa@3",
    ".style",
    ".sastyle",
    ".dom@3",
    ".aux@3",
    ".saaux@3",
    ".domnone@3",
]


def named_cuts(n: int, c: int, s: int) -> dict[str, str]:
    """Return the specs of the cuts of an input of n samples, c channels and s positions, with their naive names."""
    cuts = {"bn": "bn", "in": "in", "ln": "ln", "en": "en:1", "pn": "pn"}
    for k in divisors(c):
        cuts |= {f"gn:{k}": f"gn:{k}", f"en:{k}": f"en:{k}"}
        cuts |= {f"gbgn:{m},{k}": f"gbgn:{m},{k}" for m in divisors(n)}
    for k in divisors(c * s):
        if s % (k // math.gcd(k, c)) == 0:
            cuts |= {f"bgn:{k}": f"bgn:{k}", f"[*,{k}]": f"joint:{k}"}
    for k in divisors(s):
        cuts |= {f"[1,*,{k}]": f"bgn:{c * k}", f"[*,*,{k}]": f"joint:{c * k}"}
    return cuts


def mixture(generator: random.Random, cuts: list[str], most: int = 3) -> str:
    """Return a spec of up to `most` cuts for the mean and for the variance; the mean may be 0."""
    sides = ["+".join(generator.sample(cuts, min(generator.randint(1, most), len(cuts)))) for _ in range(generator.randint(1, 2))]
    sides = ["0", sides[0]] if generator.random() < 0.2 else sides
    return "/".join(sides)


@dataclass(frozen=True)
class Case:
    """A pass.

    Args:
        seed, number: what reproduces it.
        spec: spec string of the norm.
        shape: (n, c, …), or (points, c) for points.
        dtype: dtype of x and of the residual, and of parameters too if `is_half`.
        layout: memory layout of x.
        values: what x is like.
        training: whether the layer is in training mode.
        activation, residual: what follows in the same pass.
        style: how a style is given: its features, or mean and std for each sample or for all.
        ragged: "mask", "lengths", "points" or "".
        options: options of `anynorm.make`.
    """

    seed: int
    number: int
    spec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    values: str
    training: bool
    activation: str | None
    residual: bool
    style: str
    ragged: str
    is_half: bool
    options: dict[str, Any]

    @property
    def command(self) -> str:
        """The command that runs this pass."""
        return f"python -m tests.soak --seed {self.seed} --case {self.number}"

    def __str__(self) -> str:
        words = [self.spec, "x".join(map(str, self.shape)), str(self.dtype).removeprefix("torch."), self.layout, self.values]
        words += ["training" if self.training else "inference", self.activation or "", "residual" * self.residual, self.ragged]
        words += ["half parameters" * self.is_half, *(f"{name}={value}" for name, value in self.options.items())]
        return " ".join(word for word in words if word)


def draw(seed: int, number: int) -> Case:
    """Return the pass of a seed and a number."""
    generator = random.Random(f"{seed}:{number}")
    while True:
        case = _draw(generator, seed, number)
        try:
            anynorm.make(case.spec, case.shape[1], **case.options)
        except AnynormError:  # such as sn.groups:2 with 3 channels
            continue
        return case


def _draw(generator: random.Random, seed: int, number: int) -> Case:
    pick = generator.choice
    while True:
        n, c, space = pick(SAMPLES), pick(CHANNELS), [pick(LENGTHS) for _ in range(generator.randint(0, 3))]
        if n * c * math.prod(space) <= MAX_VALUES:
            break
    ragged = pick(("", "", "", "", "mask", "points")) if not space else pick(("", "", "", "", "", "mask", "lengths"))
    ragged = "mask" if ragged == "lengths" and len(space) != 1 else ragged
    options: dict[str, Any] = {}
    if generator.random() < 0.3 and ragged != "points":
        options["channel_axis"] = pick((-1, -1, 2)) if space else -1
    if generator.random() < 0.15:
        options["single_value"] = "running"
    if generator.random() < 0.4:
        options["eps"] = pick((1e-3, 1e-8, 0.1))
    rule = generator.random()
    if rule < 0.3:
        options["momentum"] = pick((None, 0.0, 1.0, 0.3))
    elif rule < 0.4:
        options["update_rule"] = pick((anynorm.Pooled(), anynorm.Frozen(), anynorm.Cumulative()))
    elif rule < 0.45:
        options["track_running_stats"] = False
    spec = _spec(generator, n, c, math.prod(space))
    return Case(
        seed,
        number,
        spec,
        (n * pick((2, 3)) if ragged == "points" else n, c, *space),
        pick((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)),
        pick(("contiguous", "contiguous", "channels_last", "strided", "transposed", "expanded")),
        pick(VALUES if not spec.startswith("gw") else VALUES[:-1]),  # whitening of an infinite value is an error of torch
        generator.random() < 0.7,
        pick((None, None, None, *MODULES)),
        generator.random() < 0.3,
        pick(("features", "pair", "row", "mean row", "std row")),
        ragged,
        generator.random() < 0.1,
        options,
    )


def _spec(generator: random.Random, n: int, c: int, s: int) -> str:
    if generator.random() < 0.25:
        spec = generator.choice(ZOO).replace("@10", "@3").replace("@2", "@3")
        return str(nearest_spec(parse(spec), c))
    families: dict[str, list[str]] = {}
    for cut in named_cuts(n, c, s):
        families.setdefault(cut.partition(":")[0] if cut[0] != "[" else str(cut.count(",")), []).append(cut)
    cuts = [cut for family in families.values() for cut in generator.sample(family, min(3, len(family)))]
    spec = mixture(generator, cuts, generator.choice((1, 1, 2, 3)))
    mixing = generator.choice(("", "", "", ".hard", ".groups:2")) if "+" in spec else ""
    return spec + mixing + generator.choice(SUFFIXES)
