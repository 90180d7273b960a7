"""Statistics over processes: two ranks on parts of a batch give what one process gives on the whole."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anynorm
from anynorm import kernels
from anynorm.core.update_rules import Frozen, Pooled
from tests.distributed import WORLD, check_parts, two_processes
from tests.helpers import CHANNELS, ROWS, data, make, same, same_state

POOLING = [spec for spec in ROWS if make(spec).pools_samples]
WHOLE = data(8, CHANNELS, 4, 4)


def part(rank, split):
    return WHOLE[:split] if rank == 0 else WHOLE[split:]


def unequal_parts(rank):
    for spec in POOLING:
        for split in (4, 0, 6) if "gbgn:4" not in spec else (4, 0):
            check_parts(rank, spec, WHOLE, split)


@pytest.mark.reference_only
def test_unequal_and_empty_ranks_give_the_output_gradients_and_statistics_of_one_process(tmp_path):
    two_processes(unequal_parts, tmp_path)


def second_order(rank):
    alone, together = (make("sn", dtype=torch.float64) for _ in range(2))
    anynorm.sync(together)
    results = []
    for norm, given in ((alone, WHOLE.double()), (together, part(rank, 3).double())):
        x = given.detach().clone().requires_grad_()
        (grad,) = torch.autograd.grad((norm(x) ** 3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((grad**2).sum(), x)[0])
    same(results[1], results[0][:3] if rank == 0 else results[0][3:])


def compiled_whole(rank):
    alone, together = make("sn"), make("sn")
    anynorm.sync(together)
    compiled = torch.compile(together, fullgraph=True, backend="aot_eager")
    same(compiled(part(rank, 3)), alone(WHOLE)[:3] if rank == 0 else alone(WHOLE)[3:])


@pytest.mark.reference_only
def test_a_synchronized_layer_compiles_with_fullgraph(tmp_path):
    two_processes(compiled_whole, tmp_path)


def test_second_derivatives_pass_through_the_exchange(tmp_path):
    two_processes(second_order, tmp_path)


def ddp_step(rank):
    for spec in ("bn", "hn:4", "sn", "auxbn@2", "bgn:32"):
        model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), make(spec))
        whole = copy.deepcopy(model)
        anynorm.sync(model)
        images, label = data(8, 3, 4, 4), torch.arange(8) % 2
        parallel = DistributedDataParallel(model)
        mine = slice(0, 4) if rank == 0 else slice(4, 8)
        for _ in range(2):  # two forwards, then one backward, as GANs and AdvProp do
            for net, x, k in ((parallel, images[mine], label[mine]), (whole, images, label)):
                losses = []
                for view in (x, x.flip(-1)):
                    if (net is parallel and spec.startswith("aux")) or spec.startswith("aux"):
                        with anynorm.condition(net, k):
                            y = net(view)
                    else:
                        y = net(view)
                    losses.append((y**3).sum())
                net.zero_grad()
                sum(losses).backward()
            for (name, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
                # ranks average; the convolution's bias has no gradient but rounding, for the norm takes it away
                same(p.grad * WORLD, q.grad, rtol=1e-3, atol=2e-2 if name == "0.bias" else 1e-2)
            same_state(model, whole)


@pytest.mark.reference_only
def test_ddp_gives_the_gradients_of_one_process_after_two_forwards_and_one_backward(tmp_path):
    two_processes(ddp_step, tmp_path)


def unsynchronised(rank):
    """Frozen, inference and switched-off layers do not talk: a rank may run them alone."""
    norm = make("bn")
    anynorm.sync(norm)
    norm(part(rank, 4))
    if rank == 0:
        norm.eval()(WHOLE)
        norm.train().update_rule = Frozen()
        norm(WHOLE)
    other = make("bn")
    anynorm.sync(other)
    anynorm.sync(other, on=False)
    if rank == 1:
        same(other(WHOLE), make("bn")(WHOLE))
    untracked = make("bn", track_running_stats=False).eval()
    anynorm.sync(untracked)
    same(untracked(part(rank, 3)), make("bn", track_running_stats=False).eval()(part(rank, 3)))
    lonely = dist.new_group([0])
    if rank == 1:
        with pytest.raises(anynorm.AnynormError, match="pass a group that contains this rank"):
            anynorm.sync(make("bn"), lonely)
    kept = make("gbgn:2,4", update_rule=Pooled())
    anynorm.sync(kept)
    kept(part(rank, 2))
    split = WHOLE.reshape(8, 4, -1)
    same(kept.running_var, split.transpose(0, 1).flatten(1).var(-1))
    single = make("bn")
    anynorm.sync(single)
    same(single(WHOLE[rank : rank + 1, :, :1, :1]), make("bn")(WHOLE[:2, :, :1, :1])[rank : rank + 1])
    group = dist.new_group([0, 1])
    grouped = make("bn")
    anynorm.sync(grouped, group)
    same(grouped(part(rank, 3)), make("bn")(WHOLE)[:3] if rank == 0 else make("bn")(WHOLE)[3:])
    same(copy.deepcopy(grouped).train()(part(rank, 3)), grouped(part(rank, 3)))
    with pytest.raises(anynorm.AnynormError, match=r"cannot be pickled: the group is not part of the model"):
        pickle.dumps(grouped)


@pytest.mark.reference_only
def test_ranks_exchange_statistics_only_in_training_and_only_if_synchronized(tmp_path):
    two_processes(unsynchronised, tmp_path)


@pytest.mark.reference_only
def test_a_synchronized_layer_without_processes_is_a_plain_one():
    norm, plain = make("sn"), make("sn")
    assert [row["path"] for row in anynorm.sync(nn.ModuleDict({"a": norm, "b": make("gn:4")}))] == ["a"]
    same(norm(WHOLE), plain(WHOLE))
    same(pickle.loads(pickle.dumps(norm))(WHOLE), norm(WHOLE))
    same_state(copy.deepcopy(norm), norm)
    with pytest.raises(anynorm.ShapeError, match="more than one value"):
        norm(WHOLE[:1, :, :1, :1])


def masked_parts(rank):
    valid = torch.rand(8, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    valid[0], valid[:, 0, 0] = True, True
    labels = torch.arange(8) % 2
    for spec, name in itertools.product(("bn", "sn", "auxbn@2", "bgn:32"), ("auto", "reference")):
        alone, together = make(spec), make(spec)
        anynorm.sync(together)
        for split in (3, 0):
            mine = slice(0, split) if rank == 0 else slice(split, 8)
            results = []
            for norm, where in ((alone, slice(0, 8)), (together, mine)):
                x = torch.where(valid[:, None], WHOLE, torch.nan)[where].requires_grad_()
                with kernels.use(name):
                    y = norm(x, labels[where], mask=valid[where])
                (y * y.detach().cos()).sum().backward()
                results.append((y.detach(), x.grad))
            for expected, ours in zip(*results, strict=True):
                same(ours, expected[mine], rtol=1e-3, atol=1e-5)
            same_state(together, alone)


@pytest.mark.reference_only
def test_ranks_with_different_numbers_of_valid_positions_give_what_one_process_gives(tmp_path):
    two_processes(masked_parts, tmp_path)
