"""Conditions reach the layers that want them, and nothing else passes as one."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from tests.helpers import data, make, same, same_state

X = data(4, 8, 3, 3)
LABEL = torch.tensor([0, 2, 1, 0])


def model(*specs):
    torch.manual_seed(0)
    return nn.Sequential(*(module for spec in specs for module in (nn.Conv2d(8, 8, 1), anynorm.make(spec, 8), nn.ReLU())))


def test_an_int_a_scalar_tensor_and_a_tensor_of_equal_labels_are_the_same():
    norm = make("sabn@3", channels=8)
    expected = norm(X, torch.full((4,), 2))
    for condition in (
        2,
        np.int64(2),
        torch.tensor(2),
        torch.full((4,), 2, dtype=torch.int32),
        torch.full((4,), 2, dtype=torch.uint8),
    ):
        same(norm(X, condition), expected)


def test_each_sample_uses_the_affine_of_its_class():
    norm = make("sabn@3", channels=8)
    together = norm(X, LABEL)
    for k in range(3):
        same(together[k == LABEL], norm(X, k)[k == LABEL])


def test_the_block_sets_the_condition_of_every_layer_and_resets_it():
    net = model("sabn@3", "bn", "auxbn@3")
    by_hand = X
    for module in copy.deepcopy(net):
        by_hand = module(by_hand, LABEL) if isinstance(module, anynorm.Norm) else module(by_hand)
    with anynorm.condition(net, LABEL):
        same(net(X), by_hand)
    with pytest.raises(anynorm.ConditionError, match=r"sabn@3 needs the class or domain \(0 to 2\) of each sample"):
        net(X)


def test_blocks_nest_and_end_on_failure():
    net = model("sabn@3")
    with anynorm.condition(net, 0):
        with pytest.raises(anynorm.ShapeError), anynorm.condition(net, 1):
            net[1](X[:, :3])
        assert net[1]._condition == 0
    assert net[1]._condition is None


def test_a_condition_passed_directly_has_priority_over_the_block():
    norm = make("ccbn@3", channels=8)
    with anynorm.condition(norm, 0):
        same(norm(X, 1), norm(X, torch.tensor([1, 1, 1, 1])))


def test_a_copy_made_inside_a_block_has_no_condition():
    norm = make("ccbn@3", channels=8)
    with anynorm.condition(norm, 0):
        assert copy.deepcopy(norm)._condition is None


def test_a_parameter_used_as_a_style_is_not_registered():
    net = nn.Sequential(anynorm.make("adain", 8))
    with anynorm.condition(net, nn.Parameter(data(1, 8, 5, 5))):
        assert not net.state_dict()
        net(X).sum()
    with anynorm.condition(net, data(1, 8, 5, 5)):
        net(X)


@pytest.mark.reference_only
def test_another_int_condition_does_not_recompile_a_model():
    torch._dynamo.reset()
    norm = anynorm.make("sabn@20", 8)
    compiled: nn.Module = torch.compile(norm, fullgraph=True, backend="aot_eager")  # type: ignore[assignment]
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for k in range(6):
            with anynorm.condition(compiled, k):
                compiled(X)


def test_a_model_without_conditional_layers_raises():
    with (
        pytest.raises(anynorm.ConditionError, match=r"No layer of this Sequential takes a condition"),
        anynorm.condition(model("bn"), 0),
    ):
        pass


def test_norms_without_condition_ignore_it():
    same(anynorm.make("bn", 8)(X, LABEL), anynorm.make("bn", 8)(X))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (None, r"sabn@3 needs the class or domain \(0 to 2\) of each sample: call norm\(x, condition\)"),
        (3, r"must be in \[0, 3\); got 3\. Pass an int from 0 to 2"),
        (-1, r"must be in \[0, 3\); got -1"),
        (torch.tensor([0, 1, 2, 7]), r"must be in \[0, 3\); got 7"),
        (torch.tensor([0, 1, -2, 0]), r"must be in \[0, 3\); got -2"),
        (torch.tensor([0, 1]), r"one entry per sample \(4\); got shape \(2,\)\. Pass an int .* or an integer tensor of 4"),
        (torch.zeros(4, 1, dtype=torch.long), r"got shape \(4, 1\)"),
        (torch.zeros(4), r"must hold integers; got a tensor of torch.float32"),
        (torch.ones(4, dtype=torch.bool), r"tensor of torch.bool"),
        (True, r"must be a class or domain; got a bool"),
        ([0, 1, 2, 0], r"must be a class or domain; got a list"),
        ("cat", r"must be a class or domain; got a str"),
    ],
)
@pytest.mark.parametrize("spec", ["sabn@3", "auxbn@3"])
def test_invalid_labels_raise_and_leave_the_layer_unchanged(spec, condition, message):
    norm = make(spec, channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.ConditionError, match=message.replace("sabn@3", spec)) as caught:
        norm(X, condition)
    assert f"Layer '{spec}', input (4, 8, 3, 3)." in str(caught.value)
    same_state(norm, before)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (None, r"adain needs a style: call"),
        (2, r"must be a floating-point tensor; got int\. Pass features \(4 or 1, 8, …\)"),
        (LABEL, r"must be a floating-point tensor; got torch.int64"),
        (data(4, 8), r"style does not fit the input; got shape \(4, 8\)"),
        (data(4, 7, 3), r"got shape \(4, 7, 3\)"),
        (data(3, 8, 3), r"got shape \(3, 8, 3\)"),
        ((data(4, 8),), r"must be features or \(mean, std\); got 1 items"),
        ((data(4, 8), data(4, 8, 3)), r"got shape \(4, 8, 3\)"),
    ],
)
def test_invalid_styles_raise(condition, message):
    with pytest.raises(anynorm.ConditionError, match=message):
        anynorm.make("adain", 8)(X, condition)


def test_one_style_serves_a_whole_batch():
    norm, style = anynorm.make("adain", 8), data(1, 8, 5, 5)
    same(norm(X, style), norm(X, style.expand(4, -1, -1, -1)))


def test_domains_have_their_own_statistics_and_absent_ones_stay_unchanged():
    norm = make("saauxbn@3", channels=8)
    norm(X, torch.tensor([0, 2, 2, 0]))
    assert norm.num_batches_tracked.tolist() == [1, 0, 1]
    same(norm.running_mean[1], torch.zeros(8))
    same(norm.running_mean[0], 0.1 * X[[0, 3]].mean((0, 2, 3)))


def test_a_domain_with_a_single_value_raises_in_training():
    norm = make("auxbn@2", channels=8)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.ShapeError, match="more than one value per statistic in training"):
        norm(data(3, 8), torch.tensor([0, 0, 1]))
    same_state(norm, before)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_inside_a_block_works_when_backward_is_inside_too(reentrant):
    net, plain = model("sabn@3", "auxbn@3"), model("sabn@3", "auxbn@3")
    plain.load_state_dict(net.state_dict())
    x = X.clone().requires_grad_()
    with anynorm.condition(net, LABEL):
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    z = X.clone().requires_grad_()
    with anynorm.condition(plain, LABEL):
        plain(z).sum().backward()
    same(x.grad, z.grad)
    same_state(net, plain)


def test_checkpointing_with_backward_outside_the_block_raises_with_a_hint():
    net = model("sabn@3")
    x = X.clone().requires_grad_()
    with anynorm.condition(net, LABEL):
        y = checkpoint(net, x, use_reentrant=False)
    with pytest.raises(
        anynorm.ConditionError, match="recomputes this layer after the block has ended: call backward inside the block"
    ):
        y.sum().backward()


def test_two_threads_can_run_different_models_with_different_conditions():
    nets = [model("sabn@3").eval() for _ in range(2)]
    expected = [net[1].eval()(nets[k][0](X), k) for k, net in enumerate(nets)]
    results: list[torch.Tensor] = [X, X]

    def work(k):
        for _ in range(50):
            with anynorm.condition(nets[k], k):
                results[k] = nets[k][:2](X)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(results, expected, strict=True):
        same(result, wanted)


@pytest.mark.reference_only
def test_labels_are_traced_whole():
    torch._dynamo.reset()
    net = model("sabn@3", "auxbn@3").eval()
    compiled = torch.compile(lambda x, k: net[2](net[1](net[0](x), k)), fullgraph=True, backend="aot_eager")
    for label in (LABEL, LABEL.flip(0), 2):
        same(compiled(X, label), net[2](net[1](net[0](X), label)))


@pytest.mark.reference_only
def test_a_block_works_around_a_compiled_model():
    torch._dynamo.reset()
    net = model("sabn@3")
    compiled: nn.Module = torch.compile(net, backend="aot_eager")  # type: ignore[assignment]
    for label in (LABEL, 1):
        with anynorm.condition(compiled, label):
            y = compiled(X)
        plain = model("sabn@3")
        plain.load_state_dict(net.state_dict())
        with anynorm.condition(plain, label):
            same(y, plain(X))


def test_a_model_without_conditional_layers_is_refused_unless_not_strict():
    model, x = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), torch.randn(4, 2, 5, 5)
    with (
        pytest.raises(anynorm.ConditionError, match="No layer of this Sequential takes a condition"),
        anynorm.condition(model, 1),
    ):
        pass
    with anynorm.condition(model, 1, strict=False):
        same(model(x), model(x))
