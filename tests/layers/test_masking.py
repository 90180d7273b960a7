"""Masked positions count in no statistic, and points are normalized by the sample that their batch index names."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Cumulative, CumulativeBiased, Pooled
from tests import references
from tests.helpers import ROWS, condition_for, data, make, same, same_state
from tests.layers.test_norm_reference import DOMAINED, TABLE, C, affine, weights

N, S = 4, 12
SHAPE = (N, C, 2, 6)
POOLING = ("bn", "en", "bgn", "gbgn")
WITHOUT_POSITIONS = [spec for spec in TABLE if not any(name in spec for name in ("pn", "[", "bgn:8", "bgn:9", "bgn:18"))]
POINT_SPECS = [spec for spec in WITHOUT_POSITIONS if "bgn:24" not in spec and "bgn:48" not in spec and "bgn:36" not in spec]


def random_mask(seed=0, shape=(N, 2, 6)):
    """A mask with valid positions in every strip of every sample."""
    valid = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    valid[..., 0, ::2] = True
    valid[..., 1, ::3] = True
    valid[0, 0, 1] = valid[1, 1, 1] = False
    return valid


def poisoned(x, valid, value=float("nan")):
    """The input with a value at masked positions."""
    return torch.where(valid[:, None], x, value)


def naive(spec, norm, x, condition, valid):
    """Output of the naive formula on the valid positions; 0 at the others."""
    domain = condition.tolist() if any(word in spec for word in DOMAINED) else None
    rows, flat = torch.where(valid[:, None], x, 0.0).double().flatten(2), valid.flatten(1)
    found = {cut: references.statistics(rows, cut, domain, flat) for side in TABLE[spec] for cut in side}
    mean, var = (
        references.weighted([found[cut][side] for cut in cuts], weights(norm, name, "hard" in spec))
        for side, (cuts, name) in enumerate(zip(TABLE[spec], ("mean", "var"), strict=True))
    )
    y = references.normalize(rows, mean, var, affine(norm, condition), norm.eps)
    return torch.where(flat[:, None], y, 0.0).reshape(x.shape)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("spec", TABLE)
def test_training_output_and_all_gradients_are_those_of_the_valid_positions(spec, layout):
    norm, valid = make(spec, channels=C), random_mask()
    x = poisoned(data(*SHAPE), valid)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    condition, target = condition_for(norm, x), poisoned(data(*SHAPE, seed=5), valid)
    if norm.norm_spec.takes_style:
        condition.requires_grad_()
    y = norm(x, condition, mask=valid)
    expected = naive(spec, norm, x, condition, valid)
    same(y, expected.float(), rtol=1e-5, atol=1e-5)
    assert y.stride() == x.stride()
    weight = torch.where(valid[:, None], target, 0.0)
    wanted = [x, *(p for p in norm.parameters() if p.requires_grad)]
    wanted += [condition] if norm.norm_spec.takes_style else []
    ours, exact = torch.autograd.grad(y, wanted, target), torch.autograd.grad((expected * weight).sum(), wanted)
    for a, b in zip(ours, exact, strict=True):
        same(a, b, rtol=1e-4, atol=1e-4)
    assert not ours[0][~valid[:, None].expand_as(x)].any()


@pytest.mark.parametrize("spec", [spec for spec in TABLE if make(spec, channels=C).pools_samples])
def test_running_statistics_count_valid_positions_only(spec):
    norm = make(spec, channels=C, momentum=0.3)
    domains = norm.norm_spec.affine.num_domains or 1
    kept: dict[str, torch.Tensor] = {}
    for step in range(2):
        valid = random_mask(step)
        x = poisoned(data(*SHAPE, seed=step), valid, math.inf)
        condition = condition_for(norm, x)
        domain = condition.tolist() if domains > 1 else None
        norm(x, condition, mask=valid)
        rows = torch.where(valid[:, None], x, 0.0).double().flatten(2)
        for side, cuts in enumerate(TABLE[spec]):
            for k, cut in enumerate([cut for cut in cuts if cut.split(":")[0] in POOLING]):
                new = references.kept_average(rows, cut, domain, domains, valid.flatten(1))[side]
                stat = ("running_mean", "running_var")[side] + ("" if k == 0 else f"_{k + 1}")
                kept[stat] = references.running(kept.get(stat, torch.full_like(new, float(side))), new, 0.3)
    for stat, value in kept.items():
        same(getattr(norm, stat), value.reshape(getattr(norm, stat).shape).float())


@pytest.mark.parametrize("spec", ["bn", "hn:4", "auxbn@3", "sn", "bgn:24"])
def test_inference_masks_the_output_and_uses_running_statistics_where_there_are_any(spec):
    norm, valid = make(spec, channels=C), random_mask()
    x, condition = data(*SHAPE), condition_for(norm, data(*SHAPE))
    norm(x, condition)
    norm.eval()
    y = norm(poisoned(x, valid), condition, mask=valid)
    if spec != "sn":
        same(y, torch.where(valid[:, None], norm(x, condition), 0.0))
    assert y[valid[:, None].expand_as(y)].isfinite().all()
    assert not y[~valid[:, None].expand_as(y)].any()


LENGTHS = (7, 3, 10, 5)


def padded(sequences):
    """A batch (n, c, max length) of sequences (c, length), with NaN in the padding, and its mask."""
    x = torch.full((len(sequences), C, max(len(row[0]) for row in sequences) + 2), float("nan"))
    valid = torch.zeros(len(x), x.shape[2], dtype=torch.bool)
    for i, row in enumerate(sequences):
        x[i, :, : row.shape[1]] = row
        valid[i, : row.shape[1]] = True
    return x, valid


@pytest.mark.parametrize("spec", ["in", "ln", "gn:4", "pn", "in+ln", "gn:2/in"])
def test_a_padded_batch_gives_the_output_and_gradient_of_each_sequence_alone(spec):
    norm = make(spec, channels=C)
    sequences = [data(C, length, seed=length) for length in LENGTHS]
    x, valid = padded(sequences)
    x.requires_grad_()
    y = norm(x, mask=valid)
    (y * y.detach().cos()).sum().backward()
    for i, row in enumerate(sequences):
        alone = row[None].clone().requires_grad_()
        z = norm(alone)
        (z * z.detach().cos()).sum().backward()
        same(y[i, :, : row.shape[1]], z[0], rtol=1e-5, atol=1e-5)
        same(x.grad[i, :, : row.shape[1]], alone.grad[0], rtol=1e-4, atol=1e-5)
        assert not y[i, :, row.shape[1] :].any()
        assert not x.grad[i, :, row.shape[1] :].any()


@pytest.mark.parametrize("rule", [None, Cumulative(), CumulativeBiased(), Pooled()])
@pytest.mark.parametrize("spec", ["bn", "hn:4", "bgn:4", "en", "ccbn@3"])
def test_a_padded_batch_gives_the_output_and_running_statistics_of_the_concatenation(spec, rule):
    masked, joined = (make(spec, channels=C, update_rule=rule) for _ in range(2))
    for step in range(2):
        sequences = [data(C, length, seed=length + 20 * step) for length in LENGTHS]
        x, valid = padded(sequences)
        labels = torch.tensor([1, 1, 1, 1]) if joined.takes_condition else None
        y = masked(x, labels, mask=valid)
        z = joined(torch.cat(sequences, 1)[None], None if labels is None else labels[:1])
        same(y.transpose(0, 1)[:, valid], z[0], rtol=1e-5, atol=1e-5)
        same_state(masked, joined)


def points(seed=0, n=5):
    """Points in random order, the graph of each, with one graph without points, and the graphs as sequences (c, points)."""
    sequences = [data(C, length, seed=seed + length) for length in (6, 2, 9, 4)]
    graph_of = torch.cat([torch.full((row.shape[1],), g) for g, row in zip((0, 1, 3, n - 1), sequences, strict=True)])
    order = torch.randperm(len(graph_of), generator=torch.Generator().manual_seed(seed))
    return torch.cat(sequences, 1).T[order], graph_of[order], order


@pytest.mark.parametrize("spec", [*POINT_SPECS, "pn"])
def test_points_give_the_output_gradients_and_statistics_of_padded_samples(spec):
    if "gbgn" in spec:
        pytest.skip("a part of several graphs may have no point; see the test below")
    ours, other = make(spec, channels=C), make(spec, channels=C)
    x, graph_of, _ = points()
    graphs = sorted(set(graph_of.tolist()))
    sequences, valid = padded([x[graph_of == g].T for g in graphs])
    condition = condition_for(ours, torch.zeros(5, C, 2))
    leaf, dense = x.clone().requires_grad_(), torch.where(valid[:, None], sequences, 0.0).requires_grad_()
    y = ours(leaf, condition, batch_index=graph_of, num_graphs=5)
    z = naive(spec, other, dense[:, :, None], None if condition is None else condition[graphs], valid[:, None])[:, :, 0].float()
    target = data(5, C, 20, seed=3)
    for i, g in enumerate(graphs):
        same(y[graph_of == g], z[i, :, valid[i]].T, rtol=1e-5, atol=1e-5)
    sum((y[graph_of == g].T * target[i, :, : valid[i].sum()]).sum() for i, g in enumerate(graphs)).backward()
    sum((z[i][:, valid[i]] * target[i, :, : valid[i].sum()]).sum() for i in range(4)).backward()
    for i, g in enumerate(graphs):
        same(leaf.grad[graph_of == g], dense.grad[i][:, valid[i]].T, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours.parameters(), other.parameters(), strict=True):
        if a.requires_grad:
            same(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    rows = torch.where(valid[:, None], sequences, 0.0).double()
    for side, cuts in enumerate(TABLE[spec]):
        for k, cut in enumerate([cut for cut in cuts if cut.split(":")[0] in POOLING]):
            domains = ours.norm_spec.affine.num_domains or 1
            domain = condition[graphs].tolist() if domains > 1 else None
            new = references.kept_average(rows, cut, domain, domains, valid)[side]
            stat = ("running_mean", "running_var")[side] + ("" if k == 0 else f"_{k + 1}")
            expected = references.running(torch.full_like(new, float(side)), new, 0.1)
            same(getattr(ours, stat), expected.reshape(getattr(ours, stat).shape).float())


def test_ghost_batches_of_graphs_pool_the_points_of_consecutive_graphs():
    norm = make("gbgn:2,4", channels=C)
    x, graph_of, _ = points(n=5)
    y = norm(x, batch_index=graph_of, num_graphs=6)
    for pair in range(3):
        rows = x[graph_of // 2 == pair]
        same(y[graph_of // 2 == pair], make("en:4", channels=C)(rows), rtol=1e-5, atol=1e-5)


def test_without_num_graphs_it_is_the_largest_index_plus_one():
    x, graph_of, _ = points()
    same(make("in", channels=C)(x, batch_index=graph_of), make("in", channels=C)(x, batch_index=graph_of, num_graphs=9))


def test_a_batch_index_of_another_integer_dtype_is_the_same():
    x, graph_of, _ = points()
    same(make("in", channels=C)(x, batch_index=graph_of.int()), make("in", channels=C)(x, batch_index=graph_of))


@pytest.mark.reference_only
@given(
    spec=st.sampled_from(["bn", "in", "ln", "sn", "hn:2", "gn:2/bn", "auxbn@3", "sabn@3", "adain", "sn.aux@3"]),
    shape=st.tuples(st.integers(1, 4), st.sampled_from([2, 4, 10]), st.integers(1, 40), st.integers(1, 3)),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
    activation=st.sampled_from([None, "relu", "silu"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    adds=st.booleans(),
    share=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)
def test_the_cpp_kernels_give_what_the_reference_gives_for_any_mask(spec, shape, layout, activation, dtype, adds, share, seed):
    n, c, height, width = shape
    valid = torch.rand(n, height, width, generator=torch.Generator().manual_seed(seed)) < share
    results = []
    for name in ("cpu", "reference"):
        norm = make(spec, channels=c, activation=activation)
        x = poisoned(data(n, c, height, width, dtype=dtype, seed=seed), valid).to(memory_format=layout).requires_grad_()
        residual = poisoned(data(n, c, height, width, dtype=dtype, seed=1), valid, math.inf).to(memory_format=layout)
        residual.requires_grad_()
        condition = condition_for(norm, x.detach().nan_to_num())
        try:
            with kernels.use(name):
                y = norm(x, condition, residual=residual if adds else None, mask=valid)
        except anynorm.ShapeError as error:
            assert "mask hides" in str(error) or "one value" in str(error)
            results.append(str(error))
            same_state(norm, make(spec, channels=c, activation=activation))
            continue
        y.backward(poisoned(data(n, c, height, width, seed=2, dtype=dtype), valid))
        results.append([y.detach(), x.grad, residual.grad, *[p.grad for p in norm.parameters()], *norm.buffers()])
    if isinstance(results[0], str) or isinstance(results[1], str):
        assert results[0] == results[1]
        return
    tolerance = {"rtol": 1e-3, "atol": 2e-3} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 2e-1}
    for a, b in zip(*results, strict=True):
        if a is not None or b is not None:
            same(a, b, **tolerance)


@pytest.mark.reference_only
@pytest.mark.parametrize("length", [5, 300, 1030, 2100])
@pytest.mark.parametrize("spec", ["bn", "in", "sn"])
def test_long_rows_with_gaps_in_whole_blocks_are_exact(spec, length):
    valid = torch.zeros(3, length, dtype=torch.bool)
    valid[0, : length // 2] = valid[1, -3:] = valid[2, ::3] = True
    results = []
    for name in ("cpu", "reference"):
        norm = make(spec, channels=C)
        x = poisoned(data(3, C, length, mean=1e3), valid).requires_grad_()
        with kernels.use(name):
            y = norm(x, mask=valid)
            (y**3).sum().backward()
        results.append([y.detach(), x.grad, *norm.buffers()])
    for a, b in zip(*results, strict=True):
        same(a, b, rtol=1e-3, atol=2e-3)


def test_a_mask_without_hidden_positions_changes_nothing():
    for spec in WITHOUT_POSITIONS:
        for layout in (torch.contiguous_format, torch.channels_last):
            plain, masked = make(spec, channels=C), make(spec, channels=C)
            x = data(*SHAPE).to(memory_format=layout)
            condition = condition_for(plain, x)
            y = masked(x, condition, mask=torch.ones(N, 2, 6, dtype=torch.bool))
            same(y, plain(x, condition), rtol=1e-5, atol=1e-5)
            same_state(masked, plain)


def test_a_mask_of_vectors_leaves_out_samples():
    valid, x, labels = torch.tensor([True, True, False, True, True, True]), data(6, C), torch.arange(6) % 2
    for spec in ("bn", "auxbn@2"):
        kept, masked = make(spec, channels=C), make(spec, channels=C)
        same(masked(x, labels, mask=valid)[valid], kept(x[valid], labels[valid]), rtol=1e-5, atol=1e-5)
        same_state(masked, kept)
    with pytest.raises(anynorm.ShapeError, match=r"hides all values of a statistic of ln, in samples 2\."):
        make("ln+bn", channels=C)(x, mask=valid)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "sn", "in"])
def test_second_derivatives_are_those_of_the_reference(spec):
    results = []
    for name in ("cpu", "reference"):
        norm, valid = make(spec, channels=C), random_mask()
        x = poisoned(data(*SHAPE), valid).requires_grad_()
        with kernels.use(name):
            (grad,) = torch.autograd.grad((norm(x, mask=valid) ** 3).sum(), x, create_graph=True)
            results.append(torch.autograd.grad((grad**2).sum(), x)[0])
    same(results[0], results[1], rtol=1e-3, atol=1e-2)


@pytest.mark.reference_only
def test_second_derivatives_of_points_are_those_of_the_reference():
    results = []
    for name in ("cpu", "reference"):
        x, graph_of, _ = points()
        x.requires_grad_()
        with kernels.use(name):
            y = make("in", channels=C)(x, batch_index=graph_of)
            (grad,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
            results.append(torch.autograd.grad((grad**2).sum(), x)[0])
    same(results[0], results[1], rtol=1e-3, atol=1e-2)


def test_several_threads_give_the_output_of_one():
    for layout in (torch.contiguous_format, torch.channels_last):
        valid = torch.rand(16, 20, 21, generator=torch.Generator().manual_seed(0)) < 0.5
        x = poisoned(data(16, C, 20, 21), valid).to(memory_format=layout)
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            try:
                leaf, norm = x.clone().requires_grad_(), make("sn", channels=C)
                y = norm(leaf, mask=valid)
                (y**3).sum().backward()
            finally:
                torch.set_num_threads(1)
            results.append([y.detach(), leaf.grad, *(p.grad for p in norm.parameters())])
        for a, b in zip(*results, strict=True):
            same(a, b, rtol=1e-4, atol=1e-4)


def model(*specs, stride=2):
    torch.manual_seed(0)
    layers = [(nn.Conv1d(C, C, 3, stride=stride, padding=1), make(spec, channels=C), nn.ReLU()) for spec in specs]
    return nn.Sequential(*(module for block in layers for module in block))


def test_the_block_sets_the_mask_of_every_norm_resized_to_its_positions():
    net, x = model("in", "gn:4"), data(2, C, 16)
    lengths = torch.tensor([16, 10])
    with anynorm.mask(net, lengths, max_length=16):
        y = net(x)
    valid = torch.arange(16) < lengths[:, None]
    z = net[1](net[0](x), mask=valid[:, ::2])
    same(y, net[5](net[4](net[3](net[2](z)), mask=valid[:, ::4])))
    with anynorm.mask(net, valid):
        same(net(x), y)
    assert net[1]._mask is None


def test_the_function_follow_gives_the_mask_of_each_norm():
    net, x, calls = model("in", "in"), data(2, C, 16), []

    def follow(valid, x):
        calls.append(tuple(x.shape))
        return valid[:, : x.shape[2]]

    valid = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.8
    with anynorm.mask(net, valid, follow=follow):
        y = net[:2](x)
        net(x)
    same(y, net[1](net[0](x), mask=valid[:, :8]))
    assert calls == [(2, C, 8), (2, C, 8), (2, C, 4)]


def test_a_norm_of_vectors_uses_the_samples_with_a_valid_position():
    norm, x = make("bn", channels=C), data(5, C)
    valid = torch.zeros(5, 7, dtype=torch.bool)
    valid[:3, 2] = True
    with anynorm.mask(norm, valid):
        same(norm(x)[:3], make("bn", channels=C)(x[:3]), rtol=1e-5, atol=1e-5)


def test_a_mask_of_images_is_resized_on_both_axes():
    valid = torch.rand(2, 8, 6, generator=torch.Generator().manual_seed(0)) < 0.8
    norm, x = make("in", channels=C), data(2, C, 4, 12)
    with anynorm.mask(norm, valid):
        same(norm(x), norm(x, mask=valid[:, ::2].repeat_interleave(2, dim=2)))


def test_blocks_nest_and_end_on_failure():
    net, x = model("in"), data(2, C, 16)
    outer, inner = torch.ones(2, 16, dtype=torch.bool), torch.arange(16).expand(2, 16) < 9
    with anynorm.mask(net, outer):
        before = net(x)
        with pytest.raises(anynorm.ShapeError), anynorm.mask(net, inner):
            net[1](x[:, :3])
        same(net(x), before)
    assert net[1]._mask is None


def test_a_mask_passed_directly_has_priority_over_the_block():
    norm, x, valid = make("in", channels=C), data(*SHAPE), random_mask()
    with anynorm.mask(norm, torch.ones(N, 2, 6, dtype=torch.bool)):
        same(norm(x, mask=valid), make("in", channels=C)(x, mask=valid))


def test_a_copy_made_inside_a_block_has_no_mask():
    norm = make("in", channels=C)
    with anynorm.mask(norm, random_mask()):
        assert copy.deepcopy(norm)._mask is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_works_inside_a_block_and_raises_outside(reentrant):
    net, plain, x = model("bn", stride=1), model("bn", stride=1), data(2, C, 16)
    valid = torch.arange(16).expand(2, 16) < 11
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    with anynorm.mask(net, valid):
        checkpoint(net, leaf, use_reentrant=reentrant).sum().backward()
    with anynorm.mask(plain, valid):
        plain(other).sum().backward()
    same(leaf.grad, other.grad)
    same_state(net, plain)
    with anynorm.mask(net, valid):
        y = checkpoint(net, leaf, use_reentrant=reentrant)
    with pytest.raises(anynorm.ShapeError, match=r"after the block of anynorm\.mask has ended: call backward inside the block"):
        y.sum().backward()


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "sn", "pn", "auxbn@3"])
def test_masked_layers_compile_with_fullgraph_and_export(spec):
    eager, x, valid = make(spec, channels=C), poisoned(data(*SHAPE), random_mask()), random_mask()
    condition = condition_for(eager, data(*SHAPE))
    other = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    same(compiled(x, condition, mask=valid), eager(x, condition, mask=valid), rtol=1e-5, atol=1e-5)
    same_state(other, eager)
    eager.eval()
    exported = torch.export.export(eager, (x, condition), {"mask": valid}).module()
    same(exported(x, condition, mask=valid), eager(x, condition, mask=valid), rtol=1e-4, atol=1e-4)


@pytest.mark.reference_only
def test_a_compiled_model_runs_inside_a_block():
    net, x = model("bn", "in"), data(2, C, 16)
    other = copy.deepcopy(net)
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for lengths in (torch.tensor([16, 10]), torch.tensor([9, 16])):
        with anynorm.mask(net, lengths, max_length=16):
            expected = net(x)
        with anynorm.mask(other, lengths, max_length=16):
            same(compiled(x), expected, rtol=1e-5, atol=1e-5)
    same_state(other, net)


@pytest.mark.reference_only
def test_points_compile_with_fullgraph_if_the_number_of_graphs_is_known():
    x, graph_of, _ = points()
    torch._dynamo.reset()
    compiled = torch.compile(make("sn", channels=C), fullgraph=True, backend="aot_eager")
    same(compiled(x, batch_index=graph_of, num_graphs=5), make("sn", channels=C)(x, batch_index=graph_of), rtol=1e-5, atol=1e-5)


VALID = torch.ones(N, 2, 6, dtype=torch.bool)
HIDDEN = VALID.clone()
HIDDEN[2] = HIDDEN[3] = False


@pytest.mark.parametrize(
    ("spec", "mask", "message"),
    [
        ("bn", VALID[:, :, :5], r"one entry per sample and position, \(4, 2, 6\); got \(4, 2, 5\)\. Layer 'bn' with 12 channels"),
        ("bn", VALID[:3], r"\(4, 2, 6\); got \(3, 2, 6\)"),
        ("bn", VALID[:, None].expand(SHAPE), r"got \(4, 12, 2, 6\)\. A mask has no axis of channels"),
        ("bn", VALID.float(), r"must be bool.*got torch\.float32 \(4, 2, 6\)\. Convert a mask of 0 and 1 by \.bool\(\)"),
        ("bn", VALID.long(), r"must be bool.*got torch\.int64"),
        ("bn", torch.tensor([3, 3, 3, 3]), r"must be bool.*got torch\.int64 \(4,\)"),
        ("bn", VALID.to("meta"), r"must be on the device of the input, cpu; got meta\. Call \.to"),
        ("bn", VALID.tolist(), r"The mask must be a tensor; got a list"),
        ("bn", ~VALID, r"mask hides all values of a statistic of bn, in samples 0 1 2 3\. Leave at least one valid position"),
        ("sn", HIDDEN, r"mask hides all values of a statistic of in, in samples 2 3\..*Layer 'sn' with 12 channels"),
        ("gbgn:2,4", HIDDEN, r"statistic of gbgn:2,4, in samples 2 3"),
        ("auxbn@2", ~VALID, r"statistic of bn, in samples 0 1 2 3\. Leave.*Inference uses running statistics"),
        ("bn", VALID & (torch.arange(48).reshape(4, 2, 6) == 5), "bn needs more than one value per statistic in training; got 1"),
        ("in", VALID & (torch.arange(12).reshape(1, 2, 6) == 5), "in needs more than one value per statistic in training; got 1"),
        ("modenorm:2", VALID, r"modenorm:2 does not support mask and batch_index: only norms defined by cuts do"),
    ],
)
def test_an_unfit_mask_raises_and_leaves_the_layer_unchanged(spec, mask, message):
    norm = make(spec, channels=C)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.AnynormError, match=message):
        norm(data(*SHAPE), condition_for(norm, data(*SHAPE)), mask=mask)
    same_state(norm, before)


def test_a_domain_whose_positions_are_all_hidden_raises_with_its_samples():
    norm, valid = make("auxbn@2", channels=C), VALID.clone()
    valid[1::2] = False
    with pytest.raises(anynorm.ShapeError, match=r"statistic of bn, in samples 1 3\."):
        norm(data(*SHAPE), torch.tensor([0, 1, 0, 1]), mask=valid)
    norm(data(*SHAPE), torch.tensor([0, 0, 0, 0]), mask=valid)


def test_inference_with_running_statistics_allows_a_mask_that_hides_everything():
    norm = make("bn", channels=C).eval()
    assert not norm(data(*SHAPE), mask=~VALID).any()


def test_without_running_statistics_inference_with_hidden_batches_raises_too():
    norm = make("bn", channels=C, track_running_stats=False).eval()
    with pytest.raises(anynorm.ShapeError, match="hides all values of a statistic of bn"):
        norm(data(*SHAPE), mask=~VALID)


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        ([True], {}, r"must be a tensor \(n, positions…\), or lengths \(n,\); got a list"),
        (torch.tensor(True), {}, r"got shape \(\)"),
        (torch.tensor([3, 4]), {}, r"Lengths need max_length, the number of positions of the padded sequences"),
        (torch.tensor([3, 9]), {"max_length": 8}, r"Lengths must be in \[0, 8\], the number of positions; got 9"),
        (torch.tensor([-1, 3]), {"max_length": 8}, r"got -1"),
        (torch.ones(2, 8), {}, r"must be bool.*got torch\.float32"),
        (
            torch.ones(2, 8, dtype=torch.bool),
            {"max_length": 8},
            r"max_length is for lengths \(n,\); got a mask of shape \(2, 8\)",
        ),
    ],
)
def test_an_unfit_mask_of_a_model_raises_when_the_block_begins(mask, options, message):
    with pytest.raises(anynorm.ShapeError, match=message), anynorm.mask(model("in"), mask, **options):
        pass


def test_a_mask_that_cannot_be_resized_or_followed_raises_with_a_way_out():
    norm = make("in", channels=C)
    message = r"has 1 axes of positions, and the input 2: \(8,\) cannot be resized to \(2, 6\)\. Pass follow="
    with pytest.raises(anynorm.ShapeError, match=message), anynorm.mask(norm, torch.ones(4, 8, dtype=torch.bool)):
        norm(data(*SHAPE))
    with pytest.raises(anynorm.ShapeError, match="got a NoneType"), anynorm.mask(norm, VALID, follow=lambda *_: None):
        norm(data(*SHAPE))


def test_a_model_without_our_norms_or_with_norms_that_take_no_mask_raises():
    with pytest.raises(anynorm.SpecError, match=r"No layer of this Sequential is a norm of anynorm\. Call anynorm\.convert"):
        with anynorm.mask(nn.Sequential(nn.BatchNorm1d(4)), VALID):
            pass
    with anynorm.mask(nn.Sequential(nn.BatchNorm1d(4)), VALID, strict=False):
        pass
    with pytest.raises(anynorm.SpecError, match="brn does not support mask"), anynorm.mask(make("brn"), VALID):
        pass


def test_lengths_of_a_layer_are_checked():
    norm, x = make("in", channels=C), data(2, C, 8)
    same(norm(x, mask=torch.tensor([8, 5])), norm(x, mask=torch.arange(8) < torch.tensor([[8], [5]])))
    with pytest.raises(anynorm.ShapeError, match=r"Lengths must be in \[0, 8\]"):
        norm(x, mask=torch.tensor([9, 5]))
    with pytest.raises(anynorm.ShapeError, match=r"one length per sample, 2; got 3"):
        norm(x, mask=torch.tensor([8, 5, 3]))


INDEX = torch.tensor([0, 0, 1, 1, 1, 2])


@pytest.mark.parametrize(
    ("spec", "x", "options", "message"),
    [
        ("in", data(6, C), {"batch_index": INDEX[:5]}, r"one entry per point, \(6,\); got \(5,\)\. Layer 'in'"),
        ("in", data(6, C), {"batch_index": INDEX.float()}, r"must be a tensor of integers; got torch\.float32"),
        ("in", data(6, C), {"batch_index": INDEX > 0}, r"got torch\.bool"),
        ("in", data(6, C), {"batch_index": [0] * 6}, r"got a list"),
        ("in", data(6, C), {"batch_index": INDEX.to("meta")}, r"must be on the device of the input, cpu; got meta"),
        ("in", data(6, C), {"batch_index": INDEX - 1}, r"batch_index must be at least 0; got -1"),
        ("in", data(6, C), {"batch_index": INDEX, "num_graphs": 2}, r"must be in \[0, 2\), as num_graphs=2; got 2"),
        ("in", data(6, C), {"batch_index": INDEX, "num_graphs": -1}, r"num_graphs must be an integer of at least 0; got -1"),
        ("in", data(6, C), {"batch_index": INDEX, "num_graphs": True}, r"got True"),
        ("in", data(6, C), {"num_graphs": 3}, r"got no batch_index"),
        ("in", data(6, C), {"batch_index": INDEX, "mask": INDEX > 0}, r"either mask or batch_index; got both"),
        ("in", data(6, C, 4), {"batch_index": INDEX}, r"needs an input \(points, c\)\. Use mask for padded samples"),
        ("bgn:24", data(6, C), {"batch_index": INDEX}, r"bgn:24 has statistics of parts of the positions.*pass mask="),
        ("pn+bn", data(6, C), {"batch_index": INDEX}, r"Pad the points and pass mask="),
        ("in", data(3, C), {"batch_index": torch.arange(3)}, r"in needs more than one value per statistic"),
        ("bn", data(1, C), {"batch_index": INDEX[:1]}, r"bn needs more than one value per statistic"),
        ("ssn:2", data(6, C), {"batch_index": INDEX}, r"ssn:2 does not support mask and batch_index"),
        ("auxbn@2", data(6, C), {"batch_index": INDEX}, r"one entry per sample \(3\); got shape \(6,\)"),
    ],
)
def test_an_unfit_batch_index_raises_and_leaves_the_layer_unchanged(spec, x, options, message):
    norm = make(spec, channels=C)
    before = copy.deepcopy(norm)
    with pytest.raises(anynorm.AnynormError, match=message):
        norm(x, torch.zeros(6, dtype=torch.long), **options)
    same_state(norm, before)


def test_a_graph_with_one_point_has_the_output_beta_among_larger_graphs():
    norm, x = make("in", channels=C), data(6, C)
    same(norm(x, batch_index=INDEX)[5], norm.bias)


def test_every_norm_of_the_zoo_takes_a_mask_or_refuses_it():
    for spec in ROWS:
        norm, x = make(spec), data(4, 16, 4, 4)
        valid = torch.ones(4, 4, 4, dtype=torch.bool)
        valid[..., 3] = False
        condition = condition_for(norm, x)
        if norm.takes_mask:
            y = norm(poisoned(x, valid), condition, mask=valid)
            assert y.isfinite().all()
            assert not y[..., 3].any()
        else:
            with pytest.raises(anynorm.SpecError, match="does not support mask"):
                norm(x, condition, mask=valid)


def test_recalibration_counts_valid_positions_only():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = anynorm.make("bn", C)

        def forward(self, batch):
            x, valid = batch
            return self.norm(x, mask=valid)

    sequences = [data(C, length, seed=length) for length in LENGTHS]
    for source_weight in (0.0, 0.5):
        model = Tagger()
        anynorm.recalibrate(model, [padded(sequences)], source_weight=source_weight, forward=lambda net, batch: net(batch))
        whole = torch.cat(sequences, 1)
        same(model.norm.running_mean, (1 - source_weight) * whole.mean(1), rtol=1e-4, atol=1e-4)
