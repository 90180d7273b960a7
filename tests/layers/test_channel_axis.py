"""Layers with channels in another axis: the same numbers as with channels in axis 1, from the same memory."""

import copy
import pickle

import pytest
import torch
from torch import nn

import anynorm
from anynorm.layers.channel_axis import from_channels_second, to_channels_second
from tests.cover import COVER
from tests.helpers import CHANNELS, ROWS, condition_for, data, make, same, same_state

TOKENS, MAPS = (4, CHANNELS, 8), (4, CHANNELS, 4, 8)
VIDEOS = [(spec, (4, CHANNELS, 2, 4, 2)) for spec in ("bn", "sn", "pn", "adain")]
TRACED = ["bn", "sn", "pn", "gn:4"]


def on_last_axis(x):
    """The same values with channels in the last axis, contiguous."""
    return x.movedim(1, -1).contiguous()


def condition_on_last_axis(norm, x):
    """The condition of a norm for x with channels in axis 1; features of a style have channels in the last axis."""
    condition = condition_for(norm, x)
    return condition.movedim(1, -1) if norm.norm_spec.takes_style else condition


def pair(spec, **options):
    """Two norms with the same parameters: with channels in axis 1, and in the last axis."""
    first, last = make(spec, **options), make(spec, channel_axis=-1, **options)
    last.load_state_dict(first.state_dict())
    return first, last


def gradients(norm, x, condition, dy):
    """Output, and the gradients of x and the parameters."""
    x = x.detach().clone().requires_grad_()
    y = norm(x, condition)
    y.backward(dy)
    return y.detach(), x.grad, [None if p.grad is None else p.grad for p in norm.parameters()]


@pytest.mark.parametrize(("spec", "shape"), [*((spec, TOKENS) for spec in ROWS), *((spec, MAPS) for spec in COVER), *VIDEOS])
@pytest.mark.parametrize("training", [True, False])
def test_every_norm_with_channels_last_equals_that_of_the_permuted_input(spec, training, shape):
    x, dy = data(*shape), data(*shape, seed=1, mean=0.0)
    first, last = pair(spec)
    first(x * 2, condition_for(first, x)), last(on_last_axis(x * 2), condition_on_last_axis(last, x))
    first.train(training), last.train(training)
    expected = gradients(first, x, condition_for(first, x), dy)
    y, dx, others = gradients(last, on_last_axis(x), condition_on_last_axis(last, x), on_last_axis(dy))
    tolerance = {"rtol": 1e-4, "atol": 1e-4}  # sums in another order
    same(y, expected[0].movedim(1, -1), **tolerance)
    same(dx, expected[1].movedim(1, -1), **tolerance)
    for actual, other in zip(others, expected[2], strict=True):
        same(actual, other, rtol=1e-3, atol=1e-3)
    for key, value in first.state_dict().items():
        same(last.state_dict()[key], value, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 16), (3, 5, 16), (2, 3, 4, 16), (2, 2, 3, 2, 16), (2, 1, 16), (1, 7, 16)])
@pytest.mark.parametrize("training", [True, False])
def test_layer_norm_of_torch_is_pn_with_channels_last(dtype, shape, training):
    torch.manual_seed(0)
    theirs, ours = nn.LayerNorm(16, dtype=dtype), anynorm.make("pn", 16, channel_axis=-1, dtype=dtype).train(training)
    nn.init.normal_(theirs.weight), nn.init.normal_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    x, dy = (torch.randn(shape).to(dtype) for _ in range(2))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    for actual, expected in zip(gradients(ours, x, None, dy), gradients_of_torch(theirs, x, dy), strict=True):
        same(actual, expected, **tolerance)


def gradients_of_torch(norm, x, dy):
    x = x.detach().clone().requires_grad_()
    y = norm(x)
    y.backward(dy)
    return y.detach(), x.grad, [p.grad for p in norm.parameters()]


@pytest.mark.parametrize("spec", ["bn", "ln", "sn", "gn:4"])
@pytest.mark.parametrize(("axis", "equal"), [(2, 2), (-2, 2), (3, 3), (-3, 1), (1, 1)])
def test_any_axis_of_a_feature_map_may_hold_the_channels(spec, axis, equal):
    x = data(*MAPS)
    first, other = pair(spec)
    other = make(spec, channel_axis=axis)
    same(other(x.movedim(1, equal)), first(x).movedim(1, equal), rtol=1e-4, atol=1e-5)
    assert make(spec, channel_axis=axis)(x.movedim(1, equal).contiguous()).is_contiguous() or equal == 2


@pytest.mark.parametrize("spec", ["pn", "rms", "gn:4", "gw:4"])
def test_channels_in_the_second_last_axis_keep_the_strides_of_the_input(spec):
    x = data(4, 16, 3, 5).movedim(1, 2).contiguous()
    y = make(spec, channel_axis=2)(x)
    assert y.stride() == x.stride()
    same(y, make(spec)(x.movedim(2, 1)).movedim(1, 2))


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3), (2, 4, 5, 3), (2, 4, 5, 6, 3), (2, 2, 2, 2, 2, 3), (2, 1, 3), (2, 4, 1)])
def test_channels_second_is_a_view_that_the_kernels_know_and_goes_back_to_the_same_strides(shape):
    x = torch.randn(shape)
    view = to_channels_second(x, -1)
    assert view.shape[:2] == (2, shape[-1])
    assert view.data_ptr() == x.data_ptr()
    formats = {2: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
    assert view.dim() not in formats or view.is_contiguous(memory_format=formats[view.dim()])
    back = from_channels_second(view, -1, x.dim())
    assert (back.data_ptr(), back.shape, back.stride()) == (x.data_ptr(), x.shape, x.stride())


@pytest.mark.parametrize("spec", ["sn", "pn", "gw:4", "adain"])
def test_residual_and_activation_are_those_of_the_users_layout(spec):
    first, last = pair(spec, activation="gelu")
    x, residual = data(*TOKENS), data(*TOKENS, seed=3)
    expected = first(x, condition_for(first, x), residual=residual)
    actual = last(on_last_axis(x), condition_on_last_axis(last, x), residual=on_last_axis(residual))
    same(actual, on_last_axis(expected), rtol=1e-4, atol=1e-5)
    with pytest.raises(anynorm.ShapeError, match=r"residual must have the shape.*\(4, 8, 16\).*got \(4, 16, 8\)"):
        last(on_last_axis(x), condition_on_last_axis(last, x), residual=residual)


def test_post_modules_are_applied_in_the_users_layout():
    norm = make("bn", channel_axis=-1)
    norm.add_module("act", nn.Softmax(-1))
    norm.post_modules = ("act",)
    same(norm(torch.randn(4, 8, CHANNELS)).sum(-1), torch.ones(4, 8))


@pytest.mark.parametrize("spec", ["sabn@3", "auxbn@2", "adain"])
def test_the_condition_of_a_block_works_as_with_channels_in_axis_1(spec):
    x = data(*TOKENS)
    first, last = pair(spec)
    with anynorm.condition(first, condition_for(first, x)), anynorm.condition(last, condition_on_last_axis(last, x)):
        same(last(on_last_axis(x)), on_last_axis(first(x)), rtol=1e-4, atol=1e-5)
    same_state(last, first)


def test_strips_follow_the_order_of_the_positions():
    norm = anynorm.make("bgn:8", 4, channel_axis=-1, affine=False)  # two strips for each channel
    x = torch.randn(3, 6, 4)
    strips = x.reshape(3, 2, 3, 4)
    mean, var = strips.mean((0, 2), keepdim=True), strips.var((0, 2), correction=0, keepdim=True)
    same(norm(x), ((strips - mean) / (var + 1e-5).sqrt()).reshape(3, 6, 4))


@pytest.mark.parametrize(
    ("axis", "shape", "message"),
    [
        (
            -1,
            (2, 5, 7),
            r"Axis -1 must hold 16 channels; got 7\. Construct the norm with 7 channels\. .*in axis -1, input .*\(2, 5, 7\)",
        ),
        (-1, (2, 16, 5), r"Axis -1 must hold 16 channels; got 5\. The axis 1 fits: pass channel_axis=1\."),
        (3, (2, 5, 16), r"channel_axis 3 does not exist in an input with 3 dimensions\. Layer 'sn'.*\(2, 5, 16\)"),
        (-3, (2, 5, 16), r"channel_axis -3 is the axis of the samples in an input with 3 dimensions"),
        (-4, (2, 5, 16), r"channel_axis -4 does not exist"),
        (-1, (16,), r"at least 2 dimensions: .*got 1 dimensions"),
    ],
)
def test_a_channel_axis_that_does_not_fit_the_input_raises(axis, shape, message):
    with pytest.raises(anynorm.ShapeError, match=message):
        make("sn", channel_axis=axis)(torch.zeros(shape))


def test_a_single_value_per_statistic_raises_with_the_users_shape():
    with pytest.raises(
        anynorm.ShapeError, match=r"in needs more than one value.*channels in axis -1, input torch.float32 \(4, 1, 16\)"
    ):
        make("in", channel_axis=-1)(torch.randn(4, 1, CHANNELS))


@pytest.mark.parametrize("axis", [0, 1.0, "last", None, True])
def test_a_channel_axis_that_is_no_axis_of_channels_raises(axis):
    with pytest.raises(anynorm.SpecError, match=r"channel_axis must be an integer other than 0, the axis of the samples; got"):
        anynorm.make("bn", 4, channel_axis=axis)


def test_features_of_a_style_must_have_channels_in_the_same_axis():
    norm = make("adain", channel_axis=-1)
    with pytest.raises(anynorm.ConditionError, match=r"got shape \(2, 16, 3\)\. Pass features \(2 or 1, …, 16\), or a pair"):
        norm(torch.randn(2, 5, CHANNELS), torch.randn(2, CHANNELS, 3))
    with pytest.raises(anynorm.ConditionError, match=r"Pass features \(2 or 1, …, 16 in axis 2, …\)"):
        make("adain", channel_axis=2)(torch.randn(2, 5, CHANNELS), torch.randn(2, CHANNELS))


def test_the_axis_is_in_repr_copies_pickles_and_state_dicts_do_not_know_it():
    norm = anynorm.make("hn:4", CHANNELS, channel_axis=-1)
    assert repr(norm) == "HeteroNorm('hn:4', 16, eps=1e-05, momentum=0.1, channel_axis=-1)"
    assert "channel_axis" not in repr(anynorm.make("hn:4", CHANNELS))
    assert [copy.deepcopy(norm).channel_axis, pickle.loads(pickle.dumps(norm)).channel_axis] == [-1, -1]
    assert anynorm.HeteroNorm(CHANNELS, 4, channel_axis=-1).channel_axis == -1
    assert anynorm.layer("bn", channel_axis=-1)(8).channel_axis == -1
    assert list(norm.state_dict()) == list(anynorm.make("hn:4", CHANNELS).state_dict())


def test_merging_and_hardening_keep_the_axis():
    assert make("sabn@3", channel_axis=-1).merge().channel_axis == -1
    model = nn.Sequential(make("sn", channel_axis=-1))
    anynorm.harden(model)
    assert model[0].channel_axis == -1


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", TRACED)
@pytest.mark.parametrize("training", [True, False])
def test_compiling_with_fullgraph_keeps_output_gradients_and_statistics(spec, training):
    torch._dynamo.reset()
    norm = make(spec, channel_axis=-1).train(training)
    other = copy.deepcopy(norm)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for shape in ((4, 8, CHANNELS), (4, 3, 5, CHANNELS)):
        x, dy = torch.randn(shape), torch.randn(shape)
        expected, actual = gradients(norm, x, None, dy), gradients(compiled, x, None, dy)
        same(actual[:2], expected[:2], rtol=1e-4, atol=1e-5)
        assert actual[0].is_contiguous()
        norm.zero_grad(), other.zero_grad()
    for key, value in norm.state_dict().items():
        same(other.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", TRACED)
def test_an_exported_program_is_right_for_other_numbers_of_tokens(spec):
    norm, x = make(spec, channel_axis=-1), torch.randn(4, 8, CHANNELS)
    norm(x)
    norm.eval()
    shapes = ({0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("tokens", min=2)},)
    program = torch.export.export(norm, (x,), dynamic_shapes=shapes)
    for shape in ((4, 8, CHANNELS), (3, 5, CHANNELS)):
        x = torch.randn(shape)
        same(program.module()(x), norm(x), rtol=1e-4, atol=1e-5)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "pn", "rms"])
def test_onnx_runtime_gives_the_same(spec):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the export extra")
    pytest.importorskip("onnxscript", reason="needs the export extra")
    norm, x = make(spec, channel_axis=-1).eval(), torch.randn(4, 8, CHANNELS)
    program = torch.onnx.export(norm, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    same(torch.from_numpy(y), norm(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", TRACED)
def test_vmap_is_a_loop_and_second_derivatives_are_right(spec):
    norm = make(spec, channel_axis=-1).double().eval()
    xs = torch.randn(3, 2, 4, CHANNELS, dtype=torch.float64)
    same(torch.vmap(norm)(xs), torch.stack([norm(x) for x in xs]))
    x = torch.randn(2, 3, CHANNELS, dtype=torch.float64, requires_grad=True)
    norm.train()

    def run(x):
        buffers = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        return torch.func.functional_call(norm, buffers, x)

    assert torch.autograd.gradcheck(run, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x,), fast_mode=True)
