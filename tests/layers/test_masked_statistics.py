"""Masked positions count in no statistic: output, gradients and running statistics are those of the valid positions alone."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Cumulative, CumulativeBiased, Pooled
from tests import references
from tests.helpers import condition_for, data, make, same, same_state
from tests.layers.ragged import LENGTHS, SHAPE, C, N, padded, points, poisoned, random_mask
from tests.layers.test_norm_reference import DOMAINED, TABLE, affine, weights

POOLING = ("bn", "en", "bgn", "gbgn")
WITHOUT_POSITIONS = [spec for spec in TABLE if not any(name in spec for name in ("pn", "[", "bgn:8", "bgn:9", "bgn:18"))]
POINT_SPECS = [spec for spec in WITHOUT_POSITIONS if "bgn:24" not in spec and "bgn:48" not in spec and "bgn:36" not in spec]


def naive(spec, norm, x, condition, valid):
    """Output of the naive formula on the valid positions; 0 at the others."""
    domain = condition.tolist() if any(word in spec for word in DOMAINED) else None
    rows, flat = torch.where(valid[:, None], x, 0.0).double().flatten(2), valid.flatten(1)
    found: dict[str, Any] = {
        cut: references.statistics(rows, cut, domain, zero_mean=not TABLE[spec][0], valid=flat)
        for side in TABLE[spec]
        for cut in side
    }
    mean, var = (
        references.weighted([found[cut][side] for cut in cuts], weights(norm, name, "hard" in spec))
        for side, (cuts, name) in enumerate(zip(TABLE[spec], ("mean", "var"), strict=True))
    )
    y = references.normalize(rows, mean, var, affine(norm, condition), float(norm.eps))
    return torch.where(flat[:, None], y, 0.0).reshape(x.shape)


@pytest.mark.parametrize(
    ("spec", "layout"),
    [(spec, "contiguous") for spec in TABLE]
    + [(spec, "channels_last") for spec in ("bn", "in", "gn:4", "sn:2", "sn.aux@3", "pn")],
)
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
    wanted: list[Any] = [x, *(p for p in norm.parameters() if p.requires_grad)]
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
                new = references.kept_average(rows, cut, domain, domains, zero_mean=not TABLE[spec][0], valid=valid.flatten(1))[
                    side
                ]
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
            new = references.kept_average(rows, cut, domain, domains, zero_mean=not TABLE[spec][0], valid=valid)[side]
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
    results: list[Any] = []
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
    results: list[Any] = []
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
    results: list[Any] = []
    for name in ("cpu", "reference"):
        norm, valid = make(spec, channels=C), random_mask()
        x = poisoned(data(*SHAPE), valid).requires_grad_()
        with kernels.use(name):
            (grad,) = torch.autograd.grad((norm(x, mask=valid) ** 3).sum(), x, create_graph=True)
            results.append(torch.autograd.grad((grad**2).sum(), x)[0])
    same(results[0], results[1], rtol=1e-3, atol=1e-2)


@pytest.mark.reference_only
def test_second_derivatives_of_points_are_those_of_the_reference():
    results: list[Any] = []
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
        results: list[Any] = []
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


@pytest.mark.parametrize("spec", ["auxbn@3", "bgn:2.saaux@3"])
def test_running_statistics_do_not_move_if_a_domain_has_hidden_samples_only(spec):
    norm, untouched = make(spec, channels=C), make(spec, channels=C)
    valid = torch.ones(N, 6, dtype=torch.bool)
    valid[1] = False
    with pytest.raises(anynorm.ShapeError, match="hides all values"):
        norm(data(N, C, 6), torch.tensor([0, 1, 0, 0]), mask=valid)
    same_state(norm, untouched)
