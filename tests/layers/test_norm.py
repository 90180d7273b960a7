"""A layer behaves as torch's layers do around its forward pass."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.core.cuts import ALL, Cut
from anynorm.core.spec import NormSpec
from tests.helpers import CHANNELS, data, make, same, same_state


def test_attributes_are_torchs():
    ours, theirs = anynorm.make("bn", 8), nn.BatchNorm2d(8)
    for name in ("num_features", "eps", "momentum", "affine", "track_running_stats"):
        assert getattr(ours, name) == getattr(theirs, name)
    ours, theirs = (
        anynorm.make("bn", 8, affine=False, track_running_stats=False),
        nn.BatchNorm2d(8, affine=False, track_running_stats=False),
    )
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        assert getattr(ours, name) is getattr(theirs, name) is None


def test_device_and_dtype_reach_every_tensor():
    norm = anynorm.make("sn.sa@3", 8, device="meta", dtype=torch.float64)
    tensors = [*norm.parameters(), *norm.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {tensor.dtype for tensor in tensors} == {torch.float64, torch.int64}


def test_affines_start_as_the_papers_say():
    torch.manual_seed(0)
    norm = anynorm.make("sabn@500", 100)
    same(norm.weight, torch.ones(100))
    same(norm.bias, torch.zeros(100))
    same(norm.class_bias, torch.zeros(500, 100))
    same(norm.class_weight.mean(), torch.tensor(1.0), rtol=0.0, atol=1e-3)
    same(norm.class_weight.std(), torch.tensor(0.02), rtol=0.02, atol=0.0)
    same(anynorm.make("auxbn@2", 8).class_weight, torch.ones(2, 8))
    same(anynorm.make("sn", 8).mean_weight, torch.ones(3))
    same(anynorm.make("sn:2", 8).var_weight, torch.ones(2, 3))


def test_sn_learns_six_weights_and_hard_sn_none_of_them():
    assert sum(p.numel() for p in anynorm.make("sn", 8, affine=False).parameters()) == 6
    hard = anynorm.make("sn.hard", 8)
    assert not hard.mean_weight.requires_grad
    hard.load_state_dict(make("sn", channels=8).state_dict())


def test_weights_returns_the_mixing_weights():
    norm = anynorm.make("sn", 8)
    same(norm.mixing_weights("mean"), torch.full((1, 3), 1 / 3))
    same(anynorm.make("sn.hard", 8).mixing_weights("var"), torch.tensor([[1.0, 0.0, 0.0]]))
    assert anynorm.make("sn:2", 8).mixing_weights("var").shape == (8, 3)
    assert anynorm.make("hn", 8).mixing_weights("var") is None


def test_reset_parameters_restores_the_initial_state():
    norm = make("sn.aux@2")
    norm(data(4, CHANNELS, 3), torch.tensor([0, 1, 1, 0]))
    torch.manual_seed(0)
    norm.reset_parameters()
    torch.manual_seed(0)
    same_state(norm, anynorm.make("sn.aux@2", CHANNELS))


def test_forward_hooks_receive_input_and_output():
    norm, seen = anynorm.make("bn", 8), []
    norm.register_forward_hook(lambda module, args, output: seen.append((len(args), output.shape)))
    norm(data(2, 8, 3))
    assert seen == [(1, (2, 8, 3))]


def test_parametrized_weights_are_used():
    norm = anynorm.make("bn", 8)

    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(norm, "weight", Double())
    same(norm(data(2, 8, 3)), 2 * anynorm.make("bn", 8)(data(2, 8, 3)))


def test_a_model_of_several_norms_trains():
    torch.manual_seed(0)
    specs = ["hn:4", "sn", "bgn:4", "gn:4", "in"]
    layers = [layer for spec in specs for layer in (nn.Conv2d(8, 8, 3, padding=1), anynorm.make(spec, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 4))
    x, y = data(16, 8, 4, 4), torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.reference_only
def test_a_compiled_and_checkpointed_layer_updates_its_statistics_once():
    torch._dynamo.reset()
    one, other = make("hn:4"), make("hn:4")
    x = data(4, CHANNELS, 4, 4).requires_grad_()
    compiled = torch.compile(lambda x: checkpoint(lambda t: other(t).relu(), x, use_reentrant=False), backend="aot_eager")
    compiled(x).sum().backward()
    one(x)
    same_state(other, one)


@pytest.mark.reference_only
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("spec", ["bn", "hn:4", "sn", "sn.aux@2"])
def test_a_checkpointed_compiled_layer_updates_its_statistics_once(spec, reentrant):
    torch._dynamo.reset()
    one, other = make(spec), make(spec)
    x, label = data(4, CHANNELS, 4, 4).requires_grad_(), torch.tensor([0, 1, 1, 0])
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        checkpoint(compiled, x, label, use_reentrant=reentrant).sum().backward()
        one(x, label)
    same_state(other, one)


def test_disabling_tracking_later_and_setting_buffers_to_none_behave_as_in_torch():
    x = data(4, 8, 3, 3)
    nothing = {"running_mean": None, "running_var": None}
    for change in ({"track_running_stats": False}, nothing, {"track_running_stats": False, **nothing}):
        ours, theirs = anynorm.make("bn", 8), nn.BatchNorm2d(8)
        for training in (True, False, True, False):
            same(ours.train(training)(x), theirs.train(training)(x))
            for layer in (ours, theirs):
                for name, value in change.items():
                    setattr(layer, name, value)
    late, theirs = anynorm.make("bn", 8, track_running_stats=False), nn.BatchNorm2d(8, track_running_stats=False)
    late.track_running_stats = theirs.track_running_stats = True
    same(late.eval()(x), theirs.eval()(x))


def test_one_hot_weights_do_not_propagate_nan_of_other_cuts():
    x = data(4, 8, 3, 3)
    x[0, 0, 0, 0] = float("nan")
    norm = anynorm.make("sn.hard", 8)  # ties go to the first cut, in
    same(norm(x)[1:], anynorm.make("in", 8)(x)[1:])


def test_a_parametrized_sandwich_merges():
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    x, label = data(4, 8, 3, 3), torch.tensor([0, 1, 2, 0])
    for name in ("weight", "class_weight"):
        norm = make("sabn@3", channels=8)
        torch.nn.utils.parametrize.register_parametrization(norm, name, Double())
        same(norm.eval().merge()(x, label), norm(x, label))


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["sn"])
def test_inductor_computes_the_same(spec):
    torch._dynamo.reset()
    one, other = make(spec), make(spec)
    x, z = (data(4, CHANNELS, 8, 8).requires_grad_() for _ in range(2))
    compiled = torch.compile(other, fullgraph=True)
    y = compiled(z)
    same(y, one(x), rtol=1e-4, atol=1e-5)
    (y**3).sum().backward(), (one(x) ** 3).sum().backward()
    same(z.grad, x.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.reference_only
def test_exporting_a_training_graph_updates_no_statistics():
    norm = make("sn")
    before = make("sn")
    torch.export.export(norm, (data(4, CHANNELS, 4, 4),))
    same_state(norm, before)


def test_a_layer_used_twice_in_a_model_counts_two_batches():
    shared = make("bn")
    model = nn.Sequential(shared, shared)
    model(data(4, CHANNELS, 3))
    assert shared.num_batches_tracked == 2


@pytest.mark.parametrize("spec", ["bn", "hn:4", "sn", "sn.aux@2"])
def test_buffers_may_change_between_forward_and_backward_in_inference(spec):
    """DistributedDataParallel broadcasts buffers at every forward, so also between two forwards and their backward."""
    norm = make(spec, dtype=torch.float64).eval()
    x = data(4, CHANNELS, 4, 4, dtype=torch.float64).requires_grad_()
    loss = (norm(x, torch.tensor([0, 1, 1, 0])) ** 2).sum()
    expected = torch.autograd.grad(loss, [x, *norm.parameters()], retain_graph=True)
    for buffer in norm.buffers():
        buffer.add_(1)
    same(torch.autograd.grad(loss, [x, *norm.parameters()]), expected)


def test_fixed_affine_ignores_cuts_without_weight_and_raises_if_inference_depends_on_the_input():
    norm = anynorm.make("in+bn+bgn:64.hard", 16)
    norm(data(4, 16, 2, 2))
    with torch.no_grad():
        for logits in (norm.mean_weight, norm.var_weight):
            logits.copy_(torch.tensor([0.0, 1.0, 0.0]))
    scale, shift = norm.eval().fixed_affine()
    x = data(2, 16, 2, 2, dtype=torch.float64)
    same(scale[:, None, None] * x + shift[:, None, None], norm.double()(x))
    with pytest.raises(anynorm.FoldError, match=r"in has no fixed affine: the statistics of in come from each input"):
        anynorm.make("in", 8).fixed_affine()


def test_a_sandwich_without_running_statistics_merges():
    norm = make("sabn@3", channels=8)
    norm.running_mean = norm.running_var = None
    x, label = data(4, 8, 3, 3), torch.tensor([0, 1, 2, 0])
    same(norm.eval().merge()(x, label), norm(x, label))


def test_without_a_counter_an_average_of_all_batches_is_not_updated_as_in_torch():
    ours, theirs = anynorm.make("bn", 8, momentum=None), nn.BatchNorm2d(8, momentum=None)
    for layer in (ours, theirs):
        layer.num_batches_tracked = None
        layer(data(4, 8, 3, 3))
    same(ours.running_mean, theirs.running_mean)


def test_the_definition_of_an_unnamed_norm_without_affine_is_its_spec():
    norm_spec = NormSpec((Cut(1, ALL, 1, name="bn"),), (Cut(1, ALL, 1, name="bn"),))
    assert str(norm_spec.without_affine()) == "bn.none"
