"""Search by the controller: REINFORCE's gradient, the baseline, exact accuracies, learning on a synthetic table."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.tasks.search.controller_task import ControllerSearch, observe
from anynorm.lab.training.config import Config
from tests.helpers import same
from tests.tables import small_table, synthetic_gains, synthetic_table, write_table


def config(norm="ln", **options):
    options = {"table": "tests.tables:small_table", "hidden_size": 8, **options}
    return Config(task="controller_search", norm=norm, batch_size=8, epochs=2, lr=0.0035, weight_decay=0.0, options=options)


def gradients(task, value):
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(task.controller.parameters()), allow_unused=True)])


def quantiles(controller):
    """Return random numbers (n, edges) at which the controller draws each of all its cells."""
    cells, policy = controller.all_cells(), controller.log_policy().exp().detach()
    uniform = torch.empty(cells.shape, dtype=policy.dtype)
    for edge in range(controller.num_edges):
        prefix = policy.view(controller.num_ops**edge, controller.num_ops, -1).sum(2)
        conditional = prefix / prefix.sum(1, keepdim=True)
        middles = (conditional.cumsum(1) - conditional / 2).flatten()
        uniform[:, edge] = middles.repeat_interleave(len(cells) // len(middles))
    return uniform


@pytest.mark.parametrize("baseline", [0.0, 0.6])
def test_the_gradient_of_reinforce_is_that_of_the_exact_expected_reward(baseline):
    """The expectation runs over all cells and both values of a reward of one image."""
    table = synthetic_table(2, 3)
    task = ControllerSearch(config(entropy_weight=0.0, reward_images=1), table).double().eval()
    nn.init.normal_(task.controller.classifier.weight)
    task.baseline.fill_(baseline)
    policy = task.controller.log_policy().exp()
    accuracy = task.valid[table.index(task.controller.all_cells())] / 100
    expected: Any = 0
    for cell, uniform in enumerate(quantiles(task.controller)):
        assert task.controller.sample(uniform[None]).ops[0].tolist() == task.controller.all_cells()[cell].tolist()
        for number, probability in ((0.0, accuracy[cell]), (1.0, 1 - accuracy[cell])):
            batch = torch.cat([uniform, torch.tensor([number])])[None]
            expected += policy[cell].detach() * probability * gradients(task, task.loss(batch)["loss"])
    same(expected, gradients(task, -(policy @ accuracy)))


def test_the_entropy_is_part_of_the_reward_without_a_gradient_of_its_own():
    batch = torch.rand(8, 3 + 160, generator=torch.Generator().manual_seed(0))
    with_entropy, without = (ControllerSearch(config(entropy_weight=weight)).eval() for weight in (0.5, 0.0))
    samples = without.controller.sample(batch[:, :3])
    score = -(0.5 * samples.entropies.detach() * samples.log_probs).mean()
    difference = gradients(with_entropy, with_entropy.loss(batch)["loss"]) - gradients(without, without.loss(batch)["loss"])
    same(difference, gradients(without, score))


def test_the_baseline_is_a_moving_average_over_samples_and_is_read_before_it_is_updated():
    task = ControllerSearch(config(entropy_weight=0.0))
    task.baseline.fill_(0.25)
    batch = torch.rand(8, 3 + 160, generator=torch.Generator().manual_seed(0))
    samples = task.controller.sample(batch[:, :3])
    rewards = observe(task.valid, task.table.index(samples.ops), batch[:, 3:])
    expected = 0.25
    for reward in rewards.tolist():
        expected = 0.99 * expected + 0.01 * reward
    same(task.loss(batch)["loss"], -((rewards - 0.25) * samples.log_probs).mean())
    assert float(task.baseline) == pytest.approx(expected, rel=1e-6)
    assert float(task.best_reward) == pytest.approx(float(rewards.max()))
    assert int(task.best_cell) == int(task.table.index(samples.ops[rewards.argmax()]))
    task.eval().loss(batch)
    assert float(task.baseline) == pytest.approx(expected, rel=1e-6), "an evaluation does not change it"


def test_observed_accuracies_have_the_mean_and_variance_of_a_binomial():
    uniform = torch.rand(20_000, 16, generator=torch.Generator().manual_seed(0))
    values = observe(torch.tensor([0.0, 30.0, 100.0]), torch.ones(20_000, dtype=torch.int64), uniform)
    assert float(values.mean()) == pytest.approx(0.3, abs=0.003)
    assert float(values.var()) == pytest.approx(0.3 * 0.7 / 16, rel=0.04)
    assert observe(torch.tensor([0.0, 100.0]), torch.tensor([0, 1]), uniform[:2]).tolist() == [0.0, 1.0]


def test_the_accuracy_of_a_uniform_policy_is_that_of_a_random_cell():
    task = ControllerSearch(config()).eval()
    nn.init.zeros_(task.controller.classifier.weight)
    with torch.no_grad():
        metrics = task.evaluate()
    for name in ("accuracy", "full_accuracy"):
        assert metrics[name] == pytest.approx(10 + float(synthetic_gains(3, 3).mean(1).sum()), rel=1e-6)
    assert metrics["entropy"] == pytest.approx(3 * 1.098612, rel=1e-5)


@pytest.mark.parametrize("norm", ["ln", "ln+gn:4"])
def test_the_controller_learns_the_best_cell_of_a_synthetic_table(norm):
    long = Config(**{**vars(config(norm, entropy_weight=0.0)), "epochs": 8, "lr": 0.01, "schedule": "constant"})
    points = train(long).trainer.curve.points
    best = small_table().best(small_table().accuracy("cifar10"))[1]
    random = small_table().random_mean(small_table().accuracy("cifar10"))
    assert points[-1]["test_accuracy"] > (random + 3 * best) / 4
    assert points[-1]["test_best_accuracy"] > (random + best) / 2


def test_places_are_where_the_norms_of_the_run_are():
    for places, expected in [("", []), ("cell", ["cell_norm"]), ("input, hidden", ["input_norm", "hidden_norm"])]:
        cell = ControllerSearch(config("gn:4~bn", places=places)).controller.cell
        named = [name for name, child in cell.named_children() if not isinstance(child, nn.Identity)]
        assert named == expected
    assert [cell.input_norm.spec, cell.hidden_norm.spec] == ["gn:4", "bn"]


def test_runs_with_different_norms_start_with_the_same_weights():
    a, b = (ControllerSearch(config(norm)).controller for norm in ("ln", "gn:4"))
    same(a.cell.weight_hh, b.cell.weight_hh)
    same(a.classifier.weight, b.classifier.weight)


def test_mixing_weights_of_the_lstm_are_in_the_record():
    task = ControllerSearch(config("ln+gn:4"))
    rows = anynorm.diagnostics.importance(task.network).rows
    assert [row["path"] for row in rows] == ["cell.input_norm", "cell.hidden_norm", "cell.cell_norm"]
    assert set(rows[0]) >= {"mean_ln", "mean_gn:4", "var_ln", "var_gn:4"}


def test_the_table_is_found_in_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    run = Config(task="controller_search", norm="ln", batch_size=10, options={"hidden_size": 8})
    with pytest.raises(anynorm.DataError, match=r"nasbench201/nb201.npz not found"):
        ControllerSearch.prepare(run)
    write_table(tmp_path)
    ControllerSearch.prepare(run)
    trainer = make_trainer(run)
    assert trainer.steps_per_epoch == 30
    trainer.training_step()
    assert float(trainer.task.get_buffer("baseline")) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": "gate"}, "norms of the controller must be at input hidden cell; got gate"),
        ({"hidden_size": 0}, "hidden_size must be at least 1; got 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1; got 0"),
        ({"baseline_decay": 1.0}, r"baseline_decay must be in \[0, 1\); got 1.0"),
        ({"entropy_weight": -1.0}, r"entropy_weight must be 0 or more; got -1.0"),
        ({"data_set": "svhn"}, "no accuracies of svhn, 12 epochs, valid"),
        ({"table": "builtins:dict"}, r"'builtins:dict' must return an anynorm.lab.tasks.search.nasbench.CellTable; got dict"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(anynorm.AnynormError, match=message):
        ControllerSearch(config(**options))
