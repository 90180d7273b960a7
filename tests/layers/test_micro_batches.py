"""One pass over several micro-batches coincides with one pass per micro-batch."""

import copy

import pytest
import torch
from torch import nn

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import CumulativeBiased, Pooled
from anynorm.kernels.sync import AllReduce
from anynorm.layers.micro_batches import micro_batches
from anynorm.surgery.accumulate import accumulate
from tests.helpers import same

SPECS = ["bn", "gn:8", "ln", "in", "sn", "hn", "hn:8", "bgn:8", "bgn:64", "bgn:24", "en", "pn", "rms"]
MIXTURES = ["bn+in", "bn/en:8", "en/bn", "bn+in/en:2", "sn.hard", "0/bn", "bn.none", "bn+en.groups:4"]


def pair(spec, dtype=torch.float64, **options):
    """Return two equal layers with random parameters."""
    norm = anynorm.make(spec, 16, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return norm, copy.deepcopy(norm)


def train(one, other, size, x, steps=2):
    """Train `one` on each micro-batch of x and `other` on all at once; return their output, input gradient and parameters'."""
    weights, results = torch.randn_like(x), []
    for norm, count in ((one, len(x) // size), (other, 1)):
        inputs = x.clone().requires_grad_()
        for _ in range(steps):
            with micro_batches([other], size):
                outputs = [norm(part) for part in inputs.chunk(count)]
            y = torch.cat(outputs)
            (y * weights).sum().backward()
        results.append([y, inputs.grad, *(parameter.grad for parameter in norm.parameters())])
    return results


def same_buffers(one, other, **tolerance):
    for (name, expected), actual in zip(one.named_buffers(), other.buffers(), strict=True):
        same(actual, expected, msg=name, **tolerance)


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("spec", [*SPECS, *MIXTURES])
def test_outputs_gradients_and_buffers_are_those_of_one_pass_per_micro_batch(spec, size):
    one, other = pair(spec)
    x = 2 * torch.randn(12, 16, 4, 6, dtype=torch.float64) + 1
    for expected, actual in zip(*train(one, other, size, x), strict=True):
        if expected is None:  # λ of sn.hard gets no gradient in both
            assert actual is None
        else:
            same(actual, expected, rtol=1e-10, atol=1e-10)
    same_buffers(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("spec", ["bn", "sn", "hn:8", "bgn:64", "bn/en:8"])
def test_the_native_kernels_update_buffers_in_sequence(spec, size):
    if not kernels.cpu.is_available():
        pytest.skip("the C++ kernels are not built")
    one, other = pair(spec, torch.float32)
    with kernels.use("cpu"):
        results = train(one, other, size, torch.randn(12, 16, 4, 6) + 1)
    for expected, actual in zip(*results, strict=True):
        same(actual, expected, rtol=1e-4, atol=1e-4)  # gradients of parameters are sums of 576 terms in another order
    same_buffers(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("update_rule", [anynorm.Cumulative(), CumulativeBiased(), anynorm.Running(0.0), anynorm.Frozen()])
def test_other_update_rules_see_one_micro_batch_after_the_other(update_rule):
    one, other = pair("hn:8", update_rule=update_rule)
    train(one, other, 2, torch.randn(12, 16, 4, 4, dtype=torch.float64) + 1)
    same_buffers(one, other, rtol=1e-12, atol=1e-12)
    assert other.num_batches_tracked == (0 if isinstance(update_rule, anynorm.Frozen) else 12)


@pytest.mark.parametrize("size", [1, 2])
def test_a_micro_batch_that_is_not_finite_is_skipped_alone(size):
    one, other = pair("sn", torch.float32)
    x = torch.randn(8, 16, 4, 4)
    x[4, 3] = torch.inf
    with torch.no_grad():
        for part in x.split(size):
            one(part)
        with micro_batches([other], size):
            other(x)
    same_buffers(one, other)
    assert (int(other.num_batches_tracked), int(other.num_batches_skipped)) == (8 // size - 1, 1)


def test_inference_the_spec_and_the_state_do_not_depend_on_it():
    norm = anynorm.make("sn", 16)
    x, state = torch.randn(6, 16, 4, 4), {name: value.shape for name, value in norm.state_dict().items()}
    expected = norm.eval()(x)
    with micro_batches([norm], 2):
        assert torch.equal(norm(x), expected)
        assert norm.spec == "sn"
        assert {name: value.shape for name, value in norm.state_dict().items()} == state
    untracked = anynorm.make("bn", 16, track_running_stats=False).eval()  # uses the batch in inference too
    expected = untracked(x)
    with micro_batches([untracked], 2):
        assert torch.equal(untracked(x), expected)
    with pytest.raises(anynorm.ShapeError), micro_batches([norm.train()], 2):
        norm(x[:3])
    assert norm.micro_batch_size is None
    norm(x)
    assert norm.num_batches_tracked == 1


def accumulating():
    model = nn.Sequential(anynorm.make("bn", 16))
    accumulate(model, 4)
    return model[0]


def synchronized():
    norm = anynorm.make("bn", 16)
    norm.sync_group = AllReduce()
    return norm


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: anynorm.make("ssn", 16), "it is outside the algebra of cuts"),
        (lambda: anynorm.make("modenorm:2", 16), "it is outside the algebra of cuts"),
        (lambda: anynorm.make("auxbn@2", 16), "it takes a condition"),
        (lambda: anynorm.make("gbgn:4,2", 16), "it divides the batch already"),
        (lambda: anynorm.make("bn", 16, update_rule=Pooled()), "its update rule is Pooled"),
        (accumulating, "it accumulates statistics"),
        (synchronized, "its statistics are synchronized"),
    ],
)
def test_norms_that_do_not_support_it_are_refused_and_none_is_changed(make, reason):
    norms = [anynorm.make("bn", 16), make()]
    message = rf"{norms[1].spec} cannot compute several micro-batches in one pass: {reason}\."
    with pytest.raises(anynorm.SpecError, match=message), micro_batches(norms, 2):
        pass
    assert [norm.micro_batch_size for norm in norms] == [None, None]


def test_inputs_that_do_not_consist_of_micro_batches_are_refused():
    norm = anynorm.make("bn", 16)
    with micro_batches([norm], 4):
        with pytest.raises(anynorm.ShapeError, match=r"the batch size must be a multiple of 4; got 6\."):
            norm(torch.randn(6, 16, 4, 4))
        with pytest.raises(anynorm.SpecError, match="must get neither a mask nor a batch index; call it once per micro-batch"):
            norm(torch.randn(8, 16, 4), mask=torch.ones(8, 4, dtype=torch.bool))
    with micro_batches([norm], 1), pytest.raises(anynorm.ShapeError, match="bn needs more than one value per statistic"):
        norm(torch.randn(8, 16))
    assert norm.num_batches_tracked == 0
