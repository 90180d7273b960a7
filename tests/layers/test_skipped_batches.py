"""A batch whose statistics are not finite does not move running statistics, and is counted."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm.core.update_rules import Cumulative, Pooled, Running
from tests.distributed import two_processes
from tests.helpers import ROWS, condition_for, data, make, same, same_state

POOLING = [spec for spec in ROWS if make(spec).pools_samples]
VALUES = [math.inf, -math.inf, math.nan, 1e30]


def bad(x, value=math.inf, sample=1, channel=3):
    """A copy of x with one value that is not finite, or whose square is not."""
    x = x.clone()
    x[sample, channel].view(-1)[0] = value
    return x


def state(norm):
    return {key: value.clone() for key, value in norm.state_dict().items() if key.startswith(("running_", "num_"))}


def assert_unchanged(norm, before):
    for key, value in before.items():
        if key != "num_passes":  # the schedule of brn goes on
            assert torch.equal(norm.state_dict()[key], value), key


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_torch_on_the_finite_batches(value, momentum):
    batches = [data(4, 8, 3, 5, seed=seed) for seed in range(5)]
    ours, theirs = anynorm.make("bn", 8, momentum=momentum), nn.BatchNorm2d(8, momentum=momentum)
    for index, x in enumerate(batches):
        if index in (0, 3):
            ours(bad(x, value))
        else:
            same(ours(x), theirs(x))
    same_state(ours, theirs)
    assert ours.num_batches_tracked == 3
    assert ours.num_batches_skipped == 2


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_the_output_is_that_of_torch(value):
    x = bad(data(4, 8, 3, 5), value)
    torch.testing.assert_close(anynorm.make("bn", 8)(x), nn.BatchNorm2d(8)(x), equal_nan=True)


@pytest.mark.parametrize("update_rule", [Running(0.1), Running(1.0), Cumulative(), Pooled()])
@pytest.mark.parametrize("spec", POOLING)
def test_all_statistics_of_a_layer_stay_as_they_are_if_one_is_not_finite(spec, update_rule):
    norm, x = make(spec, update_rule=update_rule), data(8, 16, 4, 4)
    condition = None if condition_for(norm, x) is None else torch.zeros(8, dtype=torch.long)
    norm(x, condition)
    before = state(norm)
    norm(bad(x), condition)
    assert_unchanged(norm, before)
    assert norm.num_batches_skipped.flatten()[0] == 1
    norm(data(8, 16, 4, 4, seed=1), condition)
    changed = [key for key, value in before.items() if not torch.equal(norm.state_dict()[key], value)]
    assert set(changed) >= {key for key in before if key.startswith(("running", "num_batches"))}
    assert all(value.isfinite().all() for value in norm.state_dict().values())


def test_a_domain_with_finite_statistics_is_updated():
    norm, x = anynorm.make("auxbn@3", 8), data(6, 8, 3, 3)
    norm(bad(x, sample=0), torch.tensor([0, 0, 1, 1, 1, 1]))
    same(norm.running_mean[[0, 2]], torch.zeros(2, 8))
    theirs = nn.BatchNorm2d(8)
    theirs(x[2:])
    same(norm.running_mean[1], theirs.running_mean)
    same(norm.running_var[1], theirs.running_var)
    assert norm.num_batches_tracked.tolist() == [0, 1, 0]
    assert norm.num_batches_skipped.tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_finite_means_finite_in_the_dtype_of_the_buffers(dtype):
    norm, x = anynorm.make("bn", 8), 400 * torch.randn(16, 8, 4, generator=torch.Generator().manual_seed(0))
    for buffer in ("running_mean", "running_var"):
        norm.register_buffer(buffer, norm.get_buffer(buffer).to(dtype))
    norm(x)  # variances of 160000, where float16 ends at 65504
    assert norm.num_batches_skipped == int(dtype == torch.float16)
    assert norm.num_batches_tracked == int(dtype != torch.float16)
    assert norm.running_var.isfinite().all()


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "sn.dom@3", "brn", "gbgn:2,4"])
def test_compiled_code_skips_as_eager_code(spec):
    eager, x = make(spec), data(4, 16, 3, 3)
    norm, condition = copy.deepcopy(eager), condition_for(eager, x)
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for batch in (bad(x), x, bad(x)):
        eager(batch, condition), compiled(batch, condition)
    same_state(norm, eager)
    same(norm.num_batches_skipped, eager.num_batches_skipped)
    assert norm.num_batches_skipped.max() == 2
    assert norm.num_batches_tracked.max() == (3 if "dom" in spec else 1)  # domains without the bad sample are not skipped


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_pass_repeated_by_checkpointing_is_counted_once(use_reentrant):
    norm = anynorm.make("bn", 8)
    checkpoint(norm, bad(data(4, 8, 3)).requires_grad_(), use_reentrant=use_reentrant).sum().backward()
    assert norm.num_batches_skipped == 1


def test_an_overflow_of_mixed_precision_is_skipped_by_the_scaler_and_by_the_statistics():
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(8, 8), anynorm.make("bn", 8))
    theirs = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    theirs.load_state_dict(ours.state_dict())
    for model, others in ((ours, 5), (theirs, 6)):
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            x = data(16, 8, seed=step) * (1e6 if step == 3 else 1.0)
            with torch.autocast("cpu", torch.float16):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert model.state_dict()["1.num_batches_tracked"] == others
        assert scaler.get_scale() == 8.0  # one step was skipped
        assert model.state_dict()["0.weight"].isfinite().all()
    assert ours[1].get_buffer("num_batches_skipped") == 1
    assert ours[1].get_buffer("running_var").isfinite().all()
    assert not theirs[1].get_buffer("running_var").isfinite().all()


def test_nothing_reads_a_value_on_the_host():
    """On the meta device, `.item()` and `bool()` of a tensor raise."""
    for update_rule in (Running(), Cumulative(), Pooled()):
        norm = anynorm.make("sn.dom@2", 8, update_rule=update_rule, device="meta", single_value="running")
        norm(torch.empty(4, 8, 3, 3, device="meta"), torch.empty(4, dtype=torch.long, device="meta"))
        norm(torch.empty(4, 8, device="meta"), torch.empty(4, dtype=torch.long, device="meta"))


def test_the_counter_is_not_in_the_state_dict_and_survives_copies():
    norm = anynorm.make("bn", 8)
    norm(bad(data(4, 8, 3)))
    assert list(norm.state_dict()) == list(nn.BatchNorm2d(8).state_dict())
    for copied in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), norm.double()):
        assert copied.num_batches_skipped == 1
    norm.reset_running_stats()
    assert norm.num_batches_skipped == 0
    norm.update_rule = Pooled()
    norm(bad(data(4, 8, 3)).double())
    assert norm.num_batches_skipped == 1


def test_a_layer_made_on_the_meta_device_counts_after_its_state_is_assigned():
    norm = anynorm.make("bn", 8, device="meta")
    norm.load_state_dict(anynorm.make("bn", 8).state_dict(), assign=True)
    norm(bad(data(4, 8, 3)))
    assert norm.num_batches_skipped == 1


def test_without_running_statistics_there_is_no_counter():
    for norm in (anynorm.make("gn:2", 8), anynorm.make("bn", 8, track_running_stats=False)):
        norm(bad(data(4, 8, 3)))
        assert norm.num_batches_skipped is None


def one_rank_is_bad(rank):
    norm = make("hn:4")
    anynorm.sync(norm)
    x = data(4, 16, 3, 3, seed=rank)
    norm(x)
    before = state(norm)
    norm(bad(x) if rank == 1 else x)
    assert_unchanged(norm, before)
    assert norm.num_batches_skipped == 1


@pytest.mark.reference_only
def test_all_processes_skip_a_batch_that_is_bad_in_one_of_them(tmp_path):
    two_processes(one_rank_is_bad, tmp_path)
