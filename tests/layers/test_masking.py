"""Masks of layers and models, and batch indices: how they are passed, followed and checked."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from tests.helpers import ROWS, condition_for, data, make, same, same_state
from tests.layers.ragged import LENGTHS, SHAPE, C, N, padded, points, poisoned, random_mask


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
