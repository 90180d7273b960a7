"""`single_value="running"`: a training batch with one value per statistic is normalized by running statistics."""

import copy

import pytest
import torch

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Cumulative, Frozen, Pooled
from tests.distributed import two_processes
from tests.helpers import condition_for, data, make, same

SPECS = ["bn", "hn:4", "sn", "ln+bn", "bn+en", "sabn@3", "brn", "modenorm:2", "bkn", "ccbn@2"]


def trained(spec, **options):
    norm, x = make(spec, single_value="running", **options), data(8, 16, 3, 3)
    norm(x, condition_for(norm, x))
    return norm


def state(norm):
    return {key: value.clone() for key, value in norm.state_dict().items() if not key.startswith("num_passes")}


@pytest.mark.parametrize("shape", [(1, 16), (1, 16, 1, 1)])
@pytest.mark.parametrize("spec", SPECS)
def test_a_single_value_is_normalized_as_in_inference_and_updates_nothing(spec, shape):
    norm, x = trained(spec), data(*shape, seed=1).requires_grad_()
    condition, before = condition_for(norm, x), state(norm)
    y = norm(x, condition)
    expected = copy.deepcopy(norm).eval()(x, condition)
    same(y, expected)
    same(torch.autograd.grad(y.square().sum(), x), torch.autograd.grad(expected.square().sum(), x))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key
    norm(data(4, *shape[1:], seed=2), None if condition is None else condition.expand(4))
    assert norm.num_batches_tracked.max() == 2  # the next batch counts again


@pytest.mark.parametrize("update_rule", [Cumulative(), Pooled(), Frozen()])
def test_every_update_rule_leaves_the_statistics_as_they_are(update_rule):
    norm = anynorm.make("bn", 16, single_value="running", update_rule=update_rule)
    norm(data(8, 16))
    before = state(norm)
    norm(data(1, 16, seed=1))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key


def test_by_default_a_single_value_raises_with_the_option_that_helps():
    with pytest.raises(anynorm.ShapeError, match=r"bn needs more than one value .* pass single_value='running' to normalize by"):
        anynorm.make("bn", 8)(data(1, 8))


@pytest.mark.parametrize(("spec", "shape"), [("in", (4, 8, 1, 1)), ("bn/in", (1, 8)), ("gn:8", (4, 8)), ("ibn", (1, 8, 1, 1))])
def test_statistics_of_one_sample_have_no_running_statistics_so_they_still_raise(spec, shape):
    with pytest.raises(anynorm.ShapeError, match=r"(in|gn:8|ibn) needs more than one value") as caught:
        anynorm.make(spec, 8, single_value="running")(data(*shape))
    assert "single_value" not in str(caught.value)


def test_without_running_statistics_a_single_value_raises():
    with pytest.raises(anynorm.ShapeError, match="bn needs more than one value"):
        anynorm.make("bn", 8, single_value="running", track_running_stats=False)(data(1, 8))


@pytest.mark.parametrize("value", ["Running", None, True])
def test_other_options_raise(value):
    with pytest.raises(anynorm.SpecError, match="single_value must be 'error' or 'running'; got "):
        anynorm.make("bn", 8, single_value=value)


@pytest.mark.parametrize("spec", ["auxbn@3", "sn.dom@3", "bn+en.dom@3"])
def test_a_domain_with_a_single_value_uses_its_running_statistics_and_the_others_the_batch(spec):
    norm = trained(spec)
    expected, inferred = copy.deepcopy(norm), copy.deepcopy(norm).eval()
    x, labels = data(6, 16, seed=1).requires_grad_(), torch.tensor([0, 1, 0, 2, 0, 2])
    others = torch.tensor([0, 2, 3, 4, 5])
    y = norm(x, labels)
    rest, single = expected(x[others], labels[others]), inferred(x[1:2], labels[1:2])
    same(y[others], rest)
    same(y[1:2], single)
    same(
        torch.autograd.grad((y**3).sum(), x)[0],
        torch.autograd.grad((rest**3).sum() + (single**3).sum(), x)[0],
        rtol=1e-4,
        atol=1e-4,
    )
    for key, value in expected.state_dict().items():
        same(norm.state_dict()[key], value)
    assert norm.num_batches_tracked.tolist() == [2, 1, 1]


def test_without_a_single_value_the_option_changes_nothing():
    for labels in (torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2, 2, 2])):
        norms = [make("saauxbn@3"), make("saauxbn@3", single_value="running")]
        outputs = [norm(data(4, 16), labels) for norm in norms]
        same(*outputs)
        for key, value in norms[0].state_dict().items():
            same(norms[1].state_dict()[key], value)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "auxbn@3"])
def test_compiled_code_does_the_same(spec):
    norm = trained(spec)
    x = data(1 if spec == "bn" else 3, 16, seed=1)
    labels = None if spec == "bn" else torch.tensor([0, 0, 1])
    eager = copy.deepcopy(norm)
    torch._dynamo.reset()
    same(torch.compile(norm, fullgraph=True, backend="aot_eager")(x, labels), eager(x, labels))
    for key, value in eager.state_dict().items():
        same(norm.state_dict()[key], value)


def test_the_option_is_shown_and_kept_by_surgery():
    norm = anynorm.make("sabn@4", 8, single_value="running")
    assert repr(norm) == "SandwichBatchNorm('sabn@4', 8, eps=1e-05, momentum=0.1, single_value='running')"
    assert norm.merge().single_value == "running"
    assert "single_value" not in repr(anynorm.make("bn", 8))
    model = torch.nn.Sequential(anynorm.make("bn", 8, single_value="running"))
    anynorm.convert(model, "hn:2")
    assert model[0].single_value == "running"
    assert anynorm.SwitchNorm(8, single_value="running").single_value == "running"
    assert anynorm.layer("bn", single_value="running")(8).single_value == "running"


def test_recalibration_does_not_use_the_option():
    """Its norms have no running statistics yet that could replace those of a batch."""
    model = torch.nn.Sequential(anynorm.make("bn", 8, single_value="running"))
    with pytest.raises(anynorm.ShapeError, match="more than one value"):
        anynorm.recalibrate(model, [data(1, 8)])


def all_ranks_together(rank):
    norm = trained("bn")
    anynorm.sync(norm)
    before = state(norm)
    x = data(1, 16, seed=1)
    y = norm(x[rank:])  # one value in all processes: the other one has no sample
    same(y, copy.deepcopy(norm).eval()(x[rank:]))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key
    norm(data(1, 16, seed=2 + rank))  # two values
    assert norm.num_batches_tracked == 2


def masked(*valid_counts, positions=5):
    """The mask (n, positions) whose sample i has valid_counts[i] valid positions."""
    return torch.arange(positions) < torch.tensor(valid_counts)[:, None]


@pytest.mark.parametrize("valid", [masked(0, 1, 0, 0), masked(0, 0, 0, 0)], ids=["one value", "no value"])
@pytest.mark.parametrize("name", ["reference", "auto"])
@pytest.mark.parametrize("spec", ["bn", "en:4+bn", "ccbn@2"])
def test_a_mask_that_leaves_less_than_two_values_is_normalized_by_running_statistics(spec, name, valid):
    norm, x = trained(spec), data(4, 16, 5, seed=1).requires_grad_()
    condition, before = condition_for(norm, x), state(norm)
    with kernels.use(name):
        y = norm(x, condition, mask=valid)
    expected = copy.deepcopy(norm).eval()(x, condition, mask=valid)
    same(y, expected)
    same(torch.autograd.grad(y.square().sum(), x), torch.autograd.grad(expected.square().sum(), x))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key
    norm(x.detach(), condition, mask=masked(5, 3, 1, 0))
    assert norm.num_batches_tracked == 2  # the next batch counts again


def test_a_domain_that_a_mask_leaves_without_values_uses_its_running_statistics_and_the_others_the_batch():
    norm = trained("auxbn@3")
    expected, inferred = copy.deepcopy(norm), copy.deepcopy(norm).eval()
    x, labels, valid = data(4, 16, 5, seed=1), torch.tensor([0, 1, 0, 2]), masked(4, 1, 3, 0)
    y = norm(x, labels, mask=valid)
    same(y[::2], expected(x[::2], labels[::2], mask=valid[::2]))
    same(y[1::2], inferred(x[1::2], labels[1::2], mask=valid[1::2]))
    for key, value in expected.state_dict().items():
        same(norm.state_dict()[key], value)


def test_a_domain_of_points_with_a_single_point_uses_running_statistics():
    norm, x, graph = trained("auxbn@3"), data(5, 16, seed=1), torch.tensor([1, 0, 0, 2, 0])
    expected, inferred = copy.deepcopy(norm), copy.deepcopy(norm).eval()
    labels = torch.tensor([0, 1, 0])  # of the three graphs, with 3, 1 and 1 points
    y = norm(x, labels, batch_index=graph)
    same(y[0], inferred(x, labels, batch_index=graph)[0])
    rest = torch.tensor([1, 2, 3, 4])
    same(y[rest], expected(x[rest], labels[:2] * 0, batch_index=graph[rest].clamp(max=1)))
    for key, value in expected.state_dict().items():
        same(norm.state_dict()[key], value)


def test_a_mask_that_leaves_enough_values_costs_no_second_pass(monkeypatch):
    norm, passes = trained("bn"), []
    compute = norm._compute_output

    def counted(*args):
        passes.append(args)
        return compute(*args)

    monkeypatch.setattr(norm, "_compute_output", counted)
    norm(data(4, 16, 5), mask=masked(1, 1, 0, 0))
    assert len(passes) == 1
    norm(data(4, 16, 5), mask=masked(1, 0, 0, 0))
    assert len(passes) == 3


def test_a_mask_that_leaves_a_single_value_raises_with_the_option_that_helps():
    with pytest.raises(anynorm.ShapeError, match=r"pass single_value='running'"):
        anynorm.make("bn", 16)(data(4, 16, 5), mask=masked(1, 0, 0, 0))
    with pytest.raises(anynorm.ShapeError, match=r"hides all values .*so does training with single_value='running'"):
        anynorm.make("bn", 16)(data(4, 16, 5), mask=masked(0, 0, 0, 0))


def ranks_with_masks(rank):
    for spec, labels in (("bn", None), ("sabn@2", torch.tensor([0, 1]))):
        norm = trained(spec)
        anynorm.sync(norm)
        inferred = copy.deepcopy(norm).eval()
        x = data(2, 16, 5, seed=1 + rank)
        for counts, updates in (((1, 0), 0), ((0, 1), 1)):  # rank 1 has no valid position, then one
            valid = masked(*(counts if rank == 0 else (0, updates)))
            y = norm(x, labels, mask=valid)
            if not updates:
                same(y, inferred(x, labels, mask=valid))
            assert norm.num_batches_tracked == 1 + updates


def all_cases(rank):
    all_ranks_together(rank)
    ranks_with_masks(rank)


@pytest.mark.reference_only
def test_values_are_counted_over_all_processes(tmp_path):
    two_processes(all_cases, tmp_path)
