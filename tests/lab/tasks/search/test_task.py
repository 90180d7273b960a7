"""Architecture search: gradients of α, halves of the data, conditions, metrics from tables, paths, and what is refused."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.lab.data.datasets import load_cached
from anynorm.lab.models.search.nasbench201.network import NasBench201
from anynorm.lab.models.search.nasbench201.notation import SKIP
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.tasks.search import bilevel
from anynorm.lab.tasks.search.bilevel import frozen, second_order_gradients, shifted
from anynorm.lab.tasks.search.metrics import check_table, table_metrics
from anynorm.lab.tasks.search.path_evaluation import evaluate_path
from anynorm.lab.tasks.search.task import ALPHA, WEIGHTS
from anynorm.lab.training.clipping import clip_gradients
from anynorm.lab.training.config import Config
from anynorm.layers.norm import Norm
from tests.helpers import same
from tests.tables import synthetic_table, write_table

OPTIONS = {"alpha_lr": 0.01}
QUICK = Config(
    task="darts", model="nasbench201.n1", width=0.5, norm="sabn@K", num_train=64, num_test=40, batch_size=8, epochs=1, lr=0.025,
    num_evals=2, options=OPTIONS,
)  # fmt: skip


def changed(**options):
    return replace(QUICK, options=OPTIONS | options)


class Recorder:
    """A trainer that keeps the gradients of α and updates nothing."""

    step, progress = 0, 0.0

    def __init__(self, task):
        self.task = task
        self.gradients: list[torch.Tensor] = []

    def autocast(self):
        return torch.autocast("cpu", enabled=False)

    def backward(self, loss):
        loss.backward()

    def update(self, name):
        assert name == "alpha"
        self.gradients = [alpha.grad.clone() for alpha in self.task.model.alpha_parameters()]
        self.task.model.zero_grad()


def double_task(**changes) -> Any:
    """Return a task in float64 with fixed batches."""
    trainer: Any = make_trainer(replace(QUICK, batch_size=6, **changes))
    task = trainer.task
    task.model.double()
    batches = [task.training_batch(0, number) for number in (WEIGHTS, ALPHA)]
    task.training_batch = lambda step, number: (batches[number][0].double(), batches[number][1])
    return task


def difference(function, alpha, entry, epsilon=1e-4):
    """Return the central difference of a function of α in one entry."""
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            alpha[entry] += sign * epsilon
        values.append(function())
        with torch.no_grad():
            alpha[entry] -= sign * epsilon
    return (values[0] - values[1]) / (2 * epsilon)


ENTRIES = [(0, 3), (2, 1), (4, 4), (5, 0)]


# Gradients of α -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn.none", "sabn@K", "gn:4"])
def test_the_first_order_gradient_of_alpha_is_that_of_finite_differences(norm):
    task = double_task(norm=norm)
    step = Recorder(task)
    task.update_architecture(step)
    alpha = task.model.alphas["cell"]

    def loss():
        with torch.no_grad():
            return task.batch_loss(0, ALPHA)["loss"].item()

    for entry in ENTRIES:
        assert step.gradients[0][entry].item() == pytest.approx(difference(loss, alpha, entry), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("norm", ["bn.none", "sabn@K"])
def test_the_second_order_gradient_of_alpha_is_that_of_finite_differences(norm, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "relu", lambda x: (1 + x.exp()).log())  # with kinks, the gradient of w jumps
    monkeypatch.setattr(bilevel, "DIFFERENCE", 1e-3)  # the product with the Hessian is itself a difference
    task = double_task(task="darts_second_order", norm=norm, lr=0.1)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    step = Recorder(task)
    task.update_architecture(step)
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    alpha, weights = task.model.alphas["cell"], task.model.weight_parameters()

    def unrolled_loss():
        """L_val after a step of the weights at this α."""
        gradients = torch.autograd.grad(task.batch_loss(0, WEIGHTS)["loss"], weights, allow_unused=True)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(0 if gradient is None else 0.1 * gradient)
            value = task.batch_loss(0, ALPHA)["loss"].item()
        task.model.load_state_dict(before | {"alphas.cell": alpha.detach().clone()})
        return value

    first = Recorder(double_task(norm=norm, lr=0.1))
    first.task.update_architecture(first)
    for entry in ENTRIES:
        expected = difference(unrolled_loss, alpha, entry)
        assert step.gradients[0][entry].item() == pytest.approx(expected, rel=2e-3, abs=1e-5)
    assert not torch.allclose(step.gradients[0], first.gradients[0], rtol=0.05)


def test_the_second_order_gradient_is_exact_for_quadratic_losses():
    w, alpha = (nn.Parameter(torch.randn(3, dtype=torch.float64)) for _ in range(2))
    a, b = (torch.randn(3, 3, dtype=torch.float64) for _ in range(2))
    # L_train = wᵀ A α + |w|²/2 and L_val = wᵀ B α:  w' = w − ξ (A α + w),  dL_val(w', α)/dα = Bᵀ w' − ξ Aᵀ B α
    actual = second_order_gradients(lambda: w @ a @ alpha + w @ w / 2, lambda: w @ b @ alpha, [w], [alpha], 0.3)
    new = w - 0.3 * (a @ alpha + w)
    same(actual[0], (b.T @ new - 0.3 * a.T @ (b @ alpha)).detach(), rtol=1e-9, atol=1e-9)


def fail():
    raise ZeroDivisionError


def test_shifted_and_frozen_parameters_are_restored_if_the_block_fails():
    w = nn.Parameter(torch.randn(5))
    before = w.detach().clone()
    with pytest.raises(ZeroDivisionError), shifted([w], [torch.ones(5)], 0.3), frozen([w]):
        fail()
    assert torch.equal(w, before)
    assert w.requires_grad


# Training -------------------------------------------------------------------------------------------------------------------


def test_the_weights_and_alpha_have_different_halves_of_the_training_images():
    task: Any = make_task(QUICK)
    images, _ = load_cached("digits", 64).train
    chosen = torch.cat([task.images.data.train[0], task.alpha_images.data.train[0]]).flatten(1)
    assert len(chosen) == 64
    assert len(task.images) == len(task.alpha_images) == 32
    assert len(chosen.unique(dim=0)) == 64
    assert all((images.flatten(1) == image).all(1).any() for image in chosen)
    assert len(task.images.data.test[1]) == 40


def test_alpha_may_be_trained_on_half_of_the_test_images():
    task: Any = make_task(changed(alpha_from_test=True))
    assert len(task.images) == 64
    assert len(task.alpha_images) == len(task.images.data.test[1]) == 20
    both = torch.cat([task.alpha_images.data.train[0], task.images.data.test[0]]).flatten(1)
    assert len(both.unique(dim=0)) == 40


def test_a_step_updates_alpha_by_adam_and_then_the_weights_by_sgd():
    trainer: Any = make_trainer(replace(QUICK, norm="bn", weight_decay=0.0))
    task = copy.deepcopy(trainer.task)
    task.sampler = trainer.task.sampler
    trainer.training_step()
    model = task.model
    adam = torch.optim.Adam(model.alpha_parameters(), 0.01, (0.5, 0.999), weight_decay=1e-3)
    nn.functional.cross_entropy(model(task.training_batch(0, ALPHA)[0]), task.training_batch(0, ALPHA)[1]).backward()
    adam.step()
    model.zero_grad()
    nn.functional.cross_entropy(model(task.training_batch(0)[0]), task.training_batch(0)[1]).backward()
    weights = model.weight_parameters()
    norm = math.sqrt(sum(weight.grad.double().square().sum().item() for weight in weights))
    for weight in weights:
        weight.data -= 0.025 * weight.grad * min(1.0, 5.0 / norm)
    for (name, actual), expected in zip(trainer.task.model.named_parameters(), model.parameters(), strict=True):
        same(actual, expected, msg=name, rtol=1e-4, atol=1e-5)  # statistics of a batch are summed twice


def test_the_weights_may_be_updated_before_alpha():
    orders = []
    for options in ({}, {"weights_first": True}):
        trainer: Any = make_trainer(changed(**options))
        calls: list[str] = []
        for name in ("update_architecture", "update_weights"):
            update = getattr(trainer.task, name)
            setattr(trainer.task, name, lambda step, name=name, update=update, calls=calls: (calls.append(name), update(step))[1])
        metrics = trainer.task.training_step(trainer)
        assert {"loss", "error", "alpha_loss", "alpha_error"} <= set(metrics)
        orders.append(calls)
    assert orders == [["update_architecture", "update_weights"], ["update_weights", "update_architecture"]]


def test_the_distance_of_alpha_from_uniform_is_a_metric():
    task: Any = make_task(QUICK)
    assert task.architecture_metrics()["alpha distance"] == pytest.approx(0, abs=1e-3)
    task.model.alphas["cell"].data[:3, 0] = 100
    assert task.architecture_metrics()["alpha distance"] == pytest.approx(0.4, abs=1e-3)  # 0.8 on three of six edges


def test_gradients_are_clipped_before_the_update_and_only_those_of_the_weights():
    trainer: Any = make_trainer(changed(clip_grad_norm=0.01))
    before = [weight.detach().clone() for weight in trainer.task.model.weight_parameters()]
    trainer.training_step()
    moved = torch.cat([(b - w).flatten() for b, w in zip(before, trainer.task.model.weight_parameters(), strict=True)])
    # SGD moves by lr (g + decay · w)
    decay = 5e-4 * torch.cat([b.flatten() for b in before])
    assert (moved / 0.025 - decay).norm().item() == pytest.approx(0.01, rel=0.05)
    assert trainer.task.model.alphas["cell"].grad is None
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 3.0)
    clip_gradients([weight], 1.5)
    assert weight.grad.norm().item() == pytest.approx(1.5, rel=1e-4)


def test_the_learning_rate_of_alpha_is_constant_and_that_of_the_weights_falls():
    trainer: Any = train(replace(QUICK, epochs=2, schedule="cosine-to-0.04")).trainer
    assert trainer.optimizers["alpha"].param_groups[0]["lr"] == 0.01
    assert 0.001 < trainer.optimizers["weights"].param_groups[0]["lr"] < 0.01
    assert QUICK.lr_at(1.0) == 0
    assert replace(QUICK, schedule="cosine-to-0.04").lr_at(1.0) == pytest.approx(0.001)


@pytest.mark.parametrize(("shared", "per_class"), [("ccbn@K", "auxbn@K"), ("sabn@K", "saauxbn@K")])
def test_statistics_per_class_differ_from_shared_ones_only_in_running_statistics(shared, per_class):
    tasks: list[Any] = [make_task(replace(QUICK, norm=norm)) for norm in (shared, per_class)]
    start = dict(tasks[0].model.named_parameters())
    tasks[1].model.load_state_dict(start, strict=False)  # γ of `auxbn` starts at 1, that of `ccbn` at N(1, 0.02)
    for task in tasks:
        train(task.config, task=task)
    one, two = (task.model for task in tasks)
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        same(a, b, msg=lambda text, name=name: f"{name}: {text}")
    sizes = [
        [m.running_mean.numel() for m in model.modules() if isinstance(m, Norm) and m.norm_spec.num_classes == 25]
        for model in (one, two)
    ]
    assert [25 * size for size in sizes[0]] == sizes[1]


def test_without_sampling_only_class_0_is_trained():
    trained = {}
    for sample in (True, False):
        trainer: Any = make_trainer(replace(changed(sample_conditions=sample), weight_decay=0.0))
        norms = [m for m in trainer.task.model.modules() if isinstance(m, Norm) and m.norm_spec.num_classes == 25]
        before = [norm.class_bias.detach().clone() for norm in norms]
        for _ in range(4):
            trainer.training_step()
        moved = torch.stack([(norm.class_bias != old).any(1) for norm, old in zip(norms, before, strict=True)]).any(0)
        trained[sample] = moved.nonzero().flatten().tolist()
    assert trained[False] == [0]
    assert len(trained[True]) > 2


def test_running_statistics_are_those_of_the_steps_of_the_weights():
    trainer: Any = make_trainer(replace(QUICK, norm="bn"))
    trainer.training_step()
    assert {int(m.num_batches_tracked) for m in trainer.task.model.modules() if isinstance(m, Norm)} == {1}


# Evaluation -----------------------------------------------------------------------------------------------------------------


def test_the_supernet_is_evaluated_with_batch_statistics():
    task: Any = make_task(replace(QUICK, norm="bn"))
    metrics = task.eval().evaluate()
    x, labels = next(task.eval_batches(40))
    task.train()
    loss = nn.functional.cross_entropy(task.model(x), labels)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["skips"] == float((task.model.alphas["cell"].argmax(1) == SKIP).sum())


def test_batch_statistics_leave_modes_statistics_and_groups_even_if_the_block_fails():
    model: Any = nn.Sequential(nn.BatchNorm2d(2), anynorm.make("bn", 2)).eval()
    group = model[1].sync_group = object()
    before = copy.deepcopy(model.state_dict())
    with batch_statistics(model):
        assert model[0].training
        assert not model[1].sync_group.is_synchronized
        model(torch.randn(3, 2, 4, 4))
    with pytest.raises(ZeroDivisionError), batch_statistics(model):
        fail()
    assert not any(module.training for module in model.modules())
    assert model[1].sync_group is group
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_metrics_from_a_table_are_those_of_loops_over_its_cells():
    table, alpha = synthetic_table(), torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    metrics = table_metrics(table, alpha)
    weights = (alpha.double().exp() / alpha.double().exp().sum(1, keepdim=True)).numpy()
    cells, accuracy = table.ops.numpy(), table.accuracy("cifar10").numpy()
    likelihood = np.array([math.prod(weights[e, o] for e, o in enumerate(cell)) for cell in cells])
    assert likelihood.sum() == pytest.approx(1)
    assert metrics["expected accuracy cifar10"] == pytest.approx((likelihood * accuracy).sum())
    ranks = [np.argsort(np.argsort(values)) for values in (likelihood, accuracy)]
    assert metrics["rank correlation cifar10"] == pytest.approx(np.corrcoef(ranks[0], ranks[1])[0, 1], abs=1e-3)  # ties
    best = next(k for k, cell in enumerate(cells) if (cell == alpha.argmax(1).numpy()).all())
    assert metrics["cell accuracy cifar10"] == pytest.approx(accuracy[best])
    assert set(metrics) == {f"{name} cifar10" for name in ("cell accuracy", "expected accuracy", "rank correlation")}
    uniform = table_metrics(table, torch.zeros(6, 5))
    assert uniform["expected accuracy cifar10"] == pytest.approx(accuracy.mean())


def test_a_run_with_a_table_is_compared_by_its_expected_accuracy(tmp_path):
    config = changed(table=str(write_table(tmp_path)))
    trainer: Any = train(config).trainer
    assert trainer.task.metric_for(config).name == "expected accuracy cifar10"
    assert trainer.task.metric_for(config).higher_is_better
    assert 10 < trainer.curve.points[-1]["test_expected accuracy cifar10"] < 90
    assert trainer.task.metric_for(QUICK).name == "error"


def test_the_architecture_is_an_artifact():
    task: Any = make_task(QUICK)
    content = json.loads(task.artifacts()["architecture.json"])
    assert content["architecture"] == task.model.architecture()
    assert np.array(content["probabilities"]["cell"]).sum() == pytest.approx(6)


def path_setting(norm) -> Any:
    trainer: Any = train(replace(QUICK, norm=norm)).trainer
    task = trainer.task
    return task, [task.training_batch(step) for step in range(4)], list(task.eval_batches(20))


def test_a_path_is_evaluated_with_statistics_of_its_own():
    task, train_batches, test_batches = path_setting("bn")
    # norms normalize each batch by its own statistics while these are estimated, so one batch of all images is another estimate
    train_batches = [(torch.cat([x for x, _ in train_batches]), torch.cat([labels for _, labels in train_batches]))]
    choice = {"cell": torch.tensor([3, 1, 2, 1, 3, 3])}
    state = copy.deepcopy(task.model.state_dict())
    result = evaluate_path(task.model, choice, train_batches, test_batches)
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, state[name])
    assert task.model._choice == {}
    model = task.model.train()
    for module in model.modules():
        if isinstance(module, Norm):
            module.reset_running_stats()
            module.update_rule = anynorm.make("bn", 8, momentum=1.0).update_rule
    with model.path(choice), torch.no_grad():
        model(train_batches[0][0])
        wrong = sum(int((model.eval()(x).argmax(1) != labels).sum()) for x, labels in test_batches)
    assert result.error == pytest.approx(100 * wrong / 40)
    assert result.error != result.error_with_supernet_statistics
    assert result.shift is not None
    assert {row["path"] for row in result.shift} >= {"network.stem.1", "network.cells.0.edges.0.3.norm", "network.norm"}
    assert not any("edges.1." in row["path"] for row in result.shift)
    assert max(row["shift"] for row in result.shift) > 0.1


def test_a_path_without_running_statistics_has_one_error():
    task, train_batches, test_batches = path_setting("gn:4")
    result = evaluate_path(task.model, task.model.choice(), train_batches, test_batches)
    assert result.error == result.error_with_supernet_statistics
    assert result.shift is None


# What is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(QUICK, grad_accum_steps=2), "a search has one batch per update; grad_accum_steps must be 1, got 2"),
        (changed(alpha_lr=0.0), r"alpha_lr must be greater than 0; got 0\.0"),
        (changed(clip_grad_norm=-1.0), r"clip_grad_norm must be 0 or more; got -1\.0"),
        (replace(QUICK, task="darts_second_order", devices=2), "second-order search must have devices=1; got 2"),
        (replace(QUICK, task="darts_second_order", precision="16-mixed"), "must have precision 32 or bf16-mixed; got 16-mixed"),
        (replace(QUICK, norm="sabn@5"), "sabn@5 has 5 classes; the operations before .* have 25 combinations"),
    ],
)
def test_settings_without_meaning_are_refused(config, message):
    with pytest.raises(anynorm.SpecError, match=message):
        make_task(config)


def test_streamed_images_are_refused(tmp_path):
    from PIL import Image

    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (16, 16), (60 * number, 0, 0)).save(tmp_path / split / label / f"{number}.png")
    config = replace(QUICK, data=f"stream:{tmp_path}", num_train=None, num_test=None, batch_size=2, image_size=16)
    with pytest.raises(anynorm.SpecError, match="a search needs images in memory; got streamed ones"):
        make_task(config)


def test_alpha_that_becomes_nan_ends_the_run_with_a_reason():
    trainer: Any = make_trainer(QUICK)
    with torch.no_grad():
        trainer.task.model.network.linear.bias[0] = math.nan
    _, failure = train(QUICK, task=trainer.task)
    assert failure == ("the architecture parameters α are not finite in step 0; use a lower lr (0.025) or alpha_lr (0.01)")


def test_a_table_that_does_not_fit_the_space_is_refused():
    supernet = NasBench201(load_cached("digits", 64).shape, 0.5, 1)
    with pytest.raises(
        anynorm.DataError, match=r"the table has cells of 4 edges with the operations none skip_connect.*NasBench201"
    ):
        check_table(synthetic_table(4, 3), supernet)
    check_table(synthetic_table(), supernet)
    check_table(None, supernet)
