"""Mixtures of two and three cuts, some with a mean of 0, are those of the naive float64 definition.

tests/kernels/test_gpu.py runs some of them. The cuts are drawn at random for the mean and the variance, among them cuts with
different names that are equal for 8 channels, such as en:4 and bgn:4.
"""

import functools
import random
from contextlib import suppress

import pytest
import torch

import anynorm
from anynorm import kernels
from tests import references
from tests.helpers import data, make, same
from tests.soak.generate import mixture, named_cuts

N, C, S = 4, 8, 4
CUTS = {spec: name for spec, name in named_cuts(N, C, S).items() if spec != "pn" and "joint:32" not in name}
EQUAL = [
    "bgn:1+en",
    "en:4+bgn:4",
    "ln/bn+bgn:8",
    "ln+[*,1]",
    "bn/en:4+bgn:4",
    "[*,16]+[*,*,2]/bn+bgn:16+[1,*,2]",
    "en+bgn:1.hard",
]
"""Mixtures of cuts that are equal for 8 channels."""


def mixtures(count, seed=0):
    """Random specs with two or three cuts for the mean, the variance or both."""
    generator, specs = random.Random(seed), list(EQUAL)
    while len(specs) < count:
        spec, suffix = mixture(generator, list(CUTS)), generator.choice(["", "", "", ".hard", ".groups:2", ".none"])
        if "+" in spec:
            with suppress(anynorm.SpecError):  # two names of one cut, such as gbgn:1,1+gn:1
                specs.append(anynorm.make(spec + suffix, C).spec)
    return specs


@functools.cache
def naive_statistics(cut, seed, zero_mean):
    """The mean and variance of a cut at each pixel of an input."""
    mean, var, _ = references.statistics(naive_input(seed), cut, None, zero_mean=zero_mean)
    return mean, var


@functools.cache
def naive_input(seed):
    return data(N, C, S, seed=seed, dtype=torch.float64).requires_grad_()


def naive(norm, spec, seed):
    """Output, and gradients of the input and the parameters, by the naive definition in float64."""
    text = spec.partition(".")[0]
    sides = text.split("/") if "/" in text else [text, text]
    params = {name: param.detach().double().requires_grad_(param.requires_grad) for name, param in norm.named_parameters()}
    mixed = []
    for k, (side, name) in enumerate(zip(sides, ("mean_weight", "var_weight"), strict=True)):
        logits, weights = params.get(name), None
        if logits is not None:
            one_hot = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
            weights = one_hot if ".hard" in spec else logits.softmax(-1)
        tables = [naive_statistics(CUTS[cut], seed, sides[0] == "0")[k] for cut in side.split("+") if cut != "0"]
        mixed.append(references.weighted(tables, weights))
    affine = [(params["weight"][:, None], params["bias"][:, None])] if "weight" in params else []
    mean, var = mixed
    y = references.normalize(naive_input(seed), mean, var, affine)
    wanted = [naive_input(seed), *(param for param in params.values() if param.requires_grad)]
    return [y.detach(), *torch.autograd.grad(y, wanted, upstream(y), retain_graph=True)]


def upstream(y):
    return torch.linspace(-1, 1, y.numel(), dtype=y.dtype).cos().reshape(y.shape)


def check_mixture(spec, backend, seed=0):
    """Compare one forward and backward pass in training with the naive definition, and the state with that of the reference."""
    norm = make(spec, channels=C)
    expected = naive(norm, spec, seed)
    x = naive_input(seed).detach().float().requires_grad_()
    other = make(spec, channels=C)
    with kernels.use(backend):
        y = norm(x)
    with kernels.use("reference"):
        other(x.detach())
    wanted = [x, *(param for param in norm.parameters() if param.requires_grad)]
    actual = [y.detach(), *torch.autograd.grad(y, wanted, upstream(y))]
    for a, b in zip(expected, actual, strict=True):
        same(b.double(), a, rtol=1e-4, atol=2e-5 * max(1.0, float(a.abs().max())), msg=lambda text: f"{spec}: {text}")
    for a, b in zip(other.buffers(), norm.buffers(), strict=True):
        same(b, a)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_random_mixtures_are_the_naive_definition(backend):
    for k, spec in enumerate(mixtures(300)):
        check_mixture(spec, backend, seed=k % 3)


@pytest.mark.parametrize("spec", EQUAL)
def test_cuts_that_are_equal_for_a_number_of_channels_keep_separate_weights_and_statistics(spec):
    norm = make(spec, channels=C)
    for indices, side in ((norm.mean_cut_indices, norm.norm_spec.mean), (norm.var_cut_indices, norm.norm_spec.var)):
        assert len(set(indices)) == len(side)
    norm(data(N, C, S))
    norm.eval()
    with kernels.use("reference"):
        expected = norm(data(N, C, S))
    same(norm(data(N, C, S)), expected)
