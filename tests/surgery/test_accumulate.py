"""With `accumulate`, k micro-batches change running statistics as one batch of all their samples does."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Cumulative, CumulativeBiased, Frozen, Pooled, Running
from tests.distributed import two_processes
from tests.helpers import ROWS, condition_for, data, make, same, same_state

POOLING = [spec for spec in ROWS if make(spec).pools_samples]
STATS = ("running_", "num_batches_", "num_values_")


def same_stats(actual, expected):
    for key, value in expected.state_dict().items():
        if key.rpartition(".")[2].startswith(STATS):
            same(actual.state_dict()[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("name", ["reference", "auto"])
@pytest.mark.parametrize("last", [False, True])
def test_two_steps_of_three_micro_batches_are_two_batches_of_torch(momentum, name, last):
    ours, theirs = anynorm.make("bn", 8, momentum=momentum), nn.BatchNorm2d(8, momentum=momentum)
    with anynorm.accumulate(ours, 3), kernels.use(name):
        for seed in range(2):
            x = data(9, 8, 4, 5, seed=seed)
            for part in x.split([2, 6, 1]):
                ours(part.to(memory_format=torch.channels_last) if last else part)
            theirs(x)
            same_state(ours, theirs)
    same_state(ours, theirs)
    assert ours.num_batches_tracked == 2


@pytest.mark.parametrize("name", ["reference", "auto"])
@pytest.mark.parametrize("spec", POOLING)
def test_every_norm_and_rule_is_that_of_the_whole_batch(spec, name):
    rules = [Running(0.3), Cumulative(), CumulativeBiased(), Pooled()]
    for update_rule in rules if spec in ("bn", "gbgn:2,4", "hn:4", "auxbn@3") else rules[:1]:
        norm, x = make(spec, update_rule=update_rule), data(16, 16, 4, 4)
        norm.schedule_enabled = False
        whole, condition = copy.deepcopy(norm), condition_for(norm, x)
        with anynorm.accumulate(norm, 3), kernels.use(name):
            for step in range(2):
                batch = x.roll(step, 1)
                for part in torch.arange(16).split([4, 8, 4]):
                    own = condition if condition is None else condition[part]
                    norm(batch[part], own)
                whole(batch, condition)
        same_stats(norm, whole)


def test_domains_that_are_in_some_micro_batches_only():
    norm, whole, x = make("saauxbn@3"), make("saauxbn@3"), data(6, 16, 3)
    labels = torch.tensor([0, 0, 1, 1, 0, 0])
    with anynorm.accumulate(norm, 3):
        for part in torch.arange(6).split(2):
            norm(x[part], labels[part])
        assert norm.num_batches_tracked.tolist() == [1, 1, 0]
    whole(x, labels)
    same_stats(norm, whole)


def test_the_output_is_that_of_each_micro_batch():
    norm, plain = make("sn"), make("sn")
    with anynorm.accumulate(norm, 2):
        for seed in range(2):
            same(norm(data(2, 16, 4, seed=seed)), plain(data(2, 16, 4, seed=seed)))


def test_nothing_moves_before_the_last_micro_batch_and_the_state_dict_keeps_its_keys():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("hn:2", 8))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with anynorm.accumulate(model, 3):
        for _ in range(2):
            model(data(2, 3, 5, 5))
            assert list(model.state_dict()) == list(before)
            for key, value in model.state_dict().items():
                assert torch.equal(value, before[key]), key
        model.eval()(data(2, 3, 5, 5))  # not counted
        model.train()(data(2, 3, 5, 5))
        assert model[1].num_batches_tracked == 1
    model(data(2, 3, 5, 5))
    assert model[1].num_batches_tracked == 2  # once per batch again


def test_an_incomplete_group_is_a_smaller_batch():
    norm, theirs = anynorm.make("bn", 8), nn.BatchNorm1d(8)
    report = anynorm.accumulate(norm, 4)
    for seed in range(2):
        norm(data(3, 8, 5, seed=seed))
    report.finish_group()
    theirs(torch.cat([data(3, 8, 5, seed=seed) for seed in range(2)]))
    same_state(norm, theirs)
    report.finish_group()  # an empty group changes nothing
    same_state(norm, theirs)
    norm(data(3, 8, 5, seed=2))
    assert report.undo() is norm
    theirs(data(3, 8, 5, seed=2))
    same_state(norm, theirs)
    assert norm.accumulator is None


def test_an_error_in_the_block_drops_the_incomplete_group():
    norm = anynorm.make("bn", 8)
    before = {key: value.clone() for key, value in norm.state_dict().items()}

    with pytest.raises(RuntimeError), anynorm.accumulate(norm, 2):  # noqa: PT012
        norm(data(4, 8))
        raise RuntimeError
    assert norm.accumulator is None  # type: ignore[unreachable]
    for key, value in norm.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_micro_batch_without_finite_statistics_is_left_out_of_its_group():
    norm, theirs = anynorm.make("bn", 8), nn.BatchNorm1d(8)
    batches = [data(4, 8, seed=seed) for seed in range(3)]
    with anynorm.accumulate(norm, 3):
        for index, x in enumerate(batches):
            norm(x * float("nan") if index == 1 else x)
    theirs(torch.cat([batches[0], batches[2]]))
    same_state(norm, theirs)
    assert norm.num_batches_skipped == 1
    with anynorm.accumulate(norm, 1):
        norm(batches[0] * float("inf"))
    same_state(norm, theirs)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_passes_repeated_by_checkpointing_are_not_counted(use_reentrant):
    norm, theirs, x = anynorm.make("bn", 8), nn.BatchNorm1d(8), data(8, 8)
    with anynorm.accumulate(norm, 2):
        for part in x.split(4):
            checkpoint(norm, part.requires_grad_(), use_reentrant=use_reentrant).square().sum().backward()
    theirs(x)
    same_state(norm, theirs)


@pytest.mark.reference_only
@pytest.mark.parametrize("spec", ["bn", "sn.dom@2", "gbgn:2,4"])
def test_compiled_code_accumulates_in_one_graph(spec):
    norm, x = make(spec), data(12, 16, 3, 3)
    whole, condition = copy.deepcopy(norm), condition_for(norm, x)
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    with anynorm.accumulate(norm, 3), torch._dynamo.config.patch(error_on_recompile=True):
        for part in torch.arange(12).split(4):
            compiled(x[part], None if condition is None else condition[part])
    whole(x, condition)
    same_stats(norm, whole)


def test_norms_of_torch_accumulate_and_come_back():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(nn.BatchNorm2d(8)))
    norms, expected = [model[1], model[2][0]], copy.deepcopy(model)  # type: ignore[index]
    x = data(6, 3, 5, 5)
    with anynorm.accumulate(model, 2) as report:
        assert [row["path"] for row in report] == ["1", "2.0"]
        assert list(model.state_dict()) == list(expected.state_dict())
        for part in x.split(3):
            model(part)
    assert [model[1], model[2][0]] == norms  # type: ignore[index]
    with torch.no_grad():
        expected[1](expected[0](x))
    same(model[1].running_var, expected[1].running_var)
    assert model[1].num_batches_tracked == model[2][0].num_batches_tracked == 1  # type: ignore[index]


def test_a_model_that_is_a_norm_of_torch():
    norm, theirs, x = nn.BatchNorm1d(8), nn.BatchNorm1d(8), data(6, 8)
    with anynorm.accumulate(norm, 2) as report:
        for part in x.split(3):
            report.model(part)
    theirs(x)
    same_state(norm, theirs)


def test_frozen_norms_and_norms_without_running_statistics_are_left_alone():
    model = nn.Sequential(anynorm.make("gn:2", 8), anynorm.make("bn", 8, update_rule=Frozen()))
    with anynorm.accumulate(model, 2) as report:
        model(data(4, 8))
    assert len(report) == 1
    assert model[1].num_batches_tracked == 0
    with anynorm.accumulate(model[0], 2) as report:
        model[0](data(4, 8))
    assert report.finding == "0 norms update their running statistics once per 2 forward passes."


def test_a_copy_accumulates_on_its_own_and_a_rule_can_change():
    norm, theirs, x = anynorm.make("bn", 8), nn.BatchNorm1d(8), data(6, 8)
    with anynorm.accumulate(norm, 2):
        norm(x[:3])
        copied = copy.deepcopy(norm)
        copied(x[3:])
        theirs(x)
        same_state(copied, theirs)
        assert norm.num_batches_tracked == 0
        norm.update_rule = Pooled()
        norm(x[3:])
    same(norm.running_var, x.var(0))
    assert norm.num_values_tracked == 6


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "2"])
def test_steps_must_be_a_positive_integer(steps):
    with pytest.raises(
        anynorm.SurgeryError, match="steps must be an integer of at least 1, the number of micro-batches per step"
    ):
        anynorm.accumulate(anynorm.make("bn", 8), steps)


def test_a_norm_that_accumulates_already_raises_and_leaves_the_others_alone():
    model = nn.Sequential(anynorm.make("bn", 8), anynorm.make("bn", 8), nn.BatchNorm1d(8))
    theirs = model[2]
    with (
        anynorm.accumulate(model[1], 2),
        pytest.raises(anynorm.SurgeryError, match=r"'1' .bn. accumulates already, over 2 forward"),
    ):
        anynorm.accumulate(model, 4)
    assert model[0].accumulator is None
    assert model[2] is theirs
    with pytest.raises(anynorm.SurgeryError, match=r"model must be an nn\.Module; got a list"):
        anynorm.accumulate([model], 2)  # type: ignore[arg-type]


def synchronized(rank):
    for spec in ("bn", "hn:4", "auxbn@3", "gbgn:2,4", "modenorm:3"):
        norm, whole, x = make(spec), make(spec), data(16, 16, 3, 3)
        condition = condition_for(norm, x)
        anynorm.sync(norm)
        with anynorm.accumulate(norm, 2):
            for part in torch.arange(16).split(8):
                own = part[:4] if rank == 0 else part[4:]
                norm(x[own], None if condition is None else condition[own])
        whole(x, condition)
        same_stats(norm, whole)


@pytest.mark.reference_only
def test_synchronized_micro_batches_are_one_batch(tmp_path):
    two_processes(synchronized, tmp_path)
