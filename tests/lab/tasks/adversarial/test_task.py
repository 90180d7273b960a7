"""Adversarial training and AdvProp: which images are trained on, by which branch, and what evaluations count."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.attacks import PGD, StandardizedModel
from anynorm.lab.comparison.compare import make_base
from anynorm.lab.data import load_dataset
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.adversarial.advprop import ADVERSARIAL, CLEAN, AdvProp
from anynorm.lab.tasks.classification.robustness import count_errors, modes_differ, pixel_model, to_pixels
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.tasks.run import make_trainer, run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
from tests.helpers import ROWS, same
from tests.lab.test_attacks import Network, condition_of, images_and_labels

DATA = load_dataset("digits")
QUICK = Config(
    task="adversarial",
    model="preact_resnet8",
    width=0.5,
    num_train=64,
    num_test=40,
    batch_size=16,
    epochs=1,
    lr=0.05,
    num_evals=2,
    options={"train_attack": "pgd:3", "attack": "pgd:2,fgsm", "epsilon": 0.1},
)
ADVPROP = replace(QUICK, task="advprop", norm="saauxbn@2")


def trainer_of(config: Config) -> Any:
    return make_trainer(config)


# Adversarial training


def test_a_training_batch_is_attacked_within_epsilon_of_the_augmented_images():
    config = replace(QUICK, flip=True, crop=1)
    task, plain = trainer_of(config).task, trainer_of(replace(config, task="classification", options={})).task
    (adversarial, targets), (clean, labels) = task.training_batch(3), plain.training_batch(3)
    assert torch.equal(targets, labels)
    adversarial, clean = (to_pixels(x, task.data) for x in (adversarial, clean))
    distance = (adversarial - clean).abs()
    assert 0.09 < float(distance.max()) <= 0.1 + 1e-5  # images have been standardized and back
    again, other = task.training_batch(3)[0], task.training_batch(2)[0]
    assert torch.equal(again, task.training_batch(3)[0])
    assert not torch.equal(again, other)
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(pixel_model(task.model, task.data).eval()(x), labels) for x in (adversarial, clean)]
    assert losses[0] > losses[1]


@pytest.mark.parametrize("norm_mode", ["eval", "train"])
def test_a_step_updates_running_statistics_once_whatever_the_attack_does(norm_mode):
    trainer = trainer_of(replace(QUICK, options={**QUICK.option_values, "attack_norm_mode": norm_mode}))
    assert trainer.task.train_attack == PGD(3, 2 / 255, epsilon=0.1, norm_mode=norm_mode)
    norm = next(module for module in trainer.task.model.modules() if hasattr(module, "running_mean"))
    expected = copy.deepcopy(trainer.task.model)
    images, _ = trainer.task.training_batch(0)
    expected.train()(images)
    trainer.training_step()
    reference = next(module for module in expected.modules() if hasattr(module, "running_mean"))
    assert float(norm.running_mean.abs().sum()) > 0
    same(norm.running_mean, reference.running_mean)
    assert all(module.training for module in trainer.task.modules())


def test_the_loss_is_that_of_the_adversarial_images_alone():
    task = trainer_of(replace(QUICK, norm="gn:4")).task
    batch = task.training_batch(0)
    expected = nn.functional.cross_entropy(task.model(batch[0]), batch[1])
    same(task.loss(batch)["loss"], expected)


def test_every_evaluation_has_the_robust_error_by_which_runs_are_compared():
    trainer = train(replace(QUICK, num_evals=2)).trainer
    assert trainer.task.metric_for(QUICK).name == "robust_error_pgd2"
    assert [("test_robust_error_pgd2" in point) for point in trainer.curve.points] == [True, True]
    assert trainer.task.metric_for(replace(QUICK, options={"attack": ""})).name == "error"


# Evaluation under attack


def robust(config: Config, tmp_path: Any) -> RunRecord:
    run(config, tmp_path)
    return Store(tmp_path).record(config.id)


def test_classification_is_attacked_after_the_last_step_in_both_modes(tmp_path):
    config = replace(QUICK, task="classification", options={"attack": "pgd:2,pgd:3", "num_attacked": 35, "epsilon": 0.1})
    points = robust(config, tmp_path).curve
    names = {f"test_robust_error_{attack}{mode}" for attack in ("pgd2", "pgd3") for mode in ("", "_train_mode")}
    assert not names & set(points[0])
    assert names <= set(points[-1])
    assert points[-1]["test_robust_error_pgd2"] * 35 / 100 == pytest.approx(
        round(points[-1]["test_robust_error_pgd2"] * 35 / 100)
    )
    assert points[-1]["test_robust_error_pgd3"] >= points[-1]["test_error"] - 5  # of other images
    unattacked = robust(replace(config, options={}), tmp_path).curve
    assert {name: value for name, value in points[-1].items() if name not in names} == unattacked[-1]


@pytest.mark.parametrize("norm_mode", ["eval", "train"])
def test_robust_errors_are_those_of_attacked_images_classified_in_eval_mode(norm_mode):
    task: Any = Classification(replace(QUICK, task="classification", options={"attack": "pgd:2", "epsilon": 0.2}), DATA)
    metrics = task.eval().evaluate_robust().metrics
    images, labels = DATA.test[0][:40].float() / 255, DATA.test[1][:40]
    model = StandardizedModel(task.model, DATA.mean / 255, DATA.std / 255)
    attack, generator = PGD(2, epsilon=0.2, norm_mode=norm_mode), torch.Generator().manual_seed(1_000_003)
    wrong = model(attack(model, images, labels, generator)).argmax(1) != labels
    expected = 100 * float(wrong.double().mean())
    assert metrics["robust_error_pgd2" + "_train_mode" * (norm_mode == "train")] == pytest.approx(expected, abs=1e-9)


def test_whole_batches_are_attacked_and_two_processes_share_them():
    class Half:
        """One of two processes, alone."""

        count = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    task: Any = Classification(Config(options={"attack": "fgsm", "num_attacked": 250}), DATA)
    whole = list(task._attacked_batches(200, Half(0))) + list(task._attacked_batches(200, Half(1)))
    assert [(number, len(labels)) for number, _, labels in whole] == [(0, 100), (1, 100)]
    assert torch.equal(torch.cat([labels for *_, labels in whole]), DATA.test[1][:200])
    assert float(whole[0][1].min()) == 0
    assert float(whole[0][1].max()) == 1


@pytest.mark.parametrize("spec", ROWS)
def test_norms_without_running_statistics_have_one_robust_error_for_both_modes(spec):
    model = Network(spec)
    if modes_differ(model):
        return
    images, labels = images_and_labels()
    with condition_of(model, images):
        assert torch.equal(*(PGD(2, norm_mode=mode)(model, images, labels) for mode in ("eval", "train")))
        wrong = count_errors(model.eval(), [(0, images, labels)], [PGD(2)])
    assert wrong["robust_error_pgd2"] == wrong["robust_error_pgd2_train_mode"]


def test_runs_without_an_attack_have_the_ids_of_before():
    assert make_base({"attack": "", "epsilon": 8 / 255}).id == Config().id
    assert make_base({"attack": "pgd:4"}).id != Config().id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": "pgd:4", "epsilon": 8}, r"epsilon must be in \[0, 1\], the range of images; got 8\. Divide by 255: 8/255"),
        ({"attack": "pgd4"}, "an attack must be fgsm or pgd:STEPS, such as pgd:10; got 'pgd4'"),
        ({"num_attacked": 0}, "num_attacked must be at least 1; got 0"),
        ({"attack": "pgd:2", "restarts": 0}, "restarts must be at least 1; got 0"),
    ],
)
def test_options_of_attacks_are_checked(options, message):
    with pytest.raises(anynorm.SpecError, match=message):
        make_task(Config(options=options))


def test_options_of_training_attacks_are_checked():
    with pytest.raises(anynorm.SpecError, match="got 'cw'"):
        make_task(replace(QUICK, options={"train_attack": "cw"}))
    with pytest.raises(anynorm.SpecError, match="attack_norm_mode must be one of eval train; got 'test'"):
        make_task(replace(QUICK, options={"attack_norm_mode": "test"}))


# AdvProp


def two_passes(task: Any, clean: torch.Tensor, adversarial: torch.Tensor) -> list[torch.Tensor]:
    logits = []
    for domain, images in ((CLEAN, clean), (ADVERSARIAL, adversarial)):
        with anynorm.condition(task.model, domain):
            logits.append(task.model(images))
    return logits


@pytest.mark.parametrize("norm", ["auxbn@2", "saauxbn@2", "gn:4.aux@2", "auxbn@2~saauxbn@2"])
def test_one_mixed_pass_equals_two_passes(norm):
    config = replace(ADVPROP, norm=norm)
    one, two = (trainer_of(config).task.double() for _ in range(2))
    assert one.has_domain_stats
    generator = torch.Generator().manual_seed(0)
    clean, adversarial = torch.randn(2, 16, 1, 8, 8, generator=generator, dtype=torch.float64)
    adversarial = adversarial[:11] + 1  # another number of images, of other statistics
    for task, logits in ((one, one.logits(clean, adversarial)), (two, two_passes(two, clean, adversarial))):
        assert [len(x) for x in logits] == [16, 11]
        sum(x.square().sum() * weight for x, weight in zip(logits, (1, 3), strict=True)).backward()
        task.result = [x.detach() for x in logits]
    for a, b in zip(one.result, two.result, strict=True):
        same(a, b)
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert a.grad is not None, name
        same(a.grad, b.grad)
    for a, b in zip(one.buffers(), two.buffers(), strict=True):
        same(a, b)
    with torch.no_grad():
        for a, b in zip(one.eval().logits(clean, adversarial), two_passes(two.eval(), clean, adversarial), strict=True):
            same(a, b)


@pytest.mark.parametrize(("norm", "mixes"), [("bn", False), ("modenorm:2", False), ("sabn@2", False), ("auxbn@2~bn", False)])
def test_norms_that_would_pool_both_kinds_of_images_get_two_passes(norm, mixes):
    task = trainer_of(replace(ADVPROP, norm=norm)).task
    assert task.has_domain_stats == mixes
    sizes: list[int] = []
    task.model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    task.logits(torch.randn(6, 1, 8, 8), torch.randn(5, 1, 8, 8))
    assert sizes == [6, 5]


def test_domain_0_is_updated_by_clean_images_and_domain_1_by_adversarial_ones():
    task = trainer_of(replace(ADVPROP, norm="auxbn@2")).task
    norm = next(module for module in task.model.modules() if hasattr(module, "running_mean"))
    task.model[0].weight.data.fill_(0.1)
    task.logits(torch.zeros(4, 1, 8, 8), torch.ones(4, 1, 8, 8))
    means = norm.running_mean.reshape(2, -1)
    assert float(means[CLEAN].abs().max()) == 0
    assert float(means[ADVERSARIAL].min()) > 0


def test_the_attack_goes_through_the_adversarial_branch():
    task = trainer_of(ADVPROP).task
    clean, adversarial, targets = task.training_batch(0)
    with torch.no_grad():
        for module in task.model.modules():
            if getattr(module, "takes_condition", False):
                module.class_weight[CLEAN].mul_(-3)  # another clean branch
    assert torch.equal(task.training_batch(0)[1], adversarial)
    with torch.no_grad():
        for module in task.model.modules():
            if getattr(module, "takes_condition", False):
                module.class_weight[ADVERSARIAL].mul_(-3)
    assert not torch.equal(task.training_batch(0)[1], adversarial)
    assert torch.equal(task.training_batch(0)[0], clean)
    assert torch.equal(task.training_batch(0)[2], targets)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_the_loss_is_the_weighted_sum_of_both_branches(weight):
    task = trainer_of(replace(ADVPROP, options={**ADVPROP.option_values, "loss_weight": weight})).task
    batch = task.training_batch(0)
    logits = two_passes(task, *batch[:2])
    losses = [nn.functional.cross_entropy(x, batch[2]) for x in logits]
    metrics = task.loss(batch)
    same(metrics["loss"], weight * (losses[0] + losses[1]))
    same(metrics["clean_loss"], losses[0].detach())
    same(metrics["adversarial_loss"], losses[1].detach())
    assert 0 <= float(metrics["error"]) <= 100
    assert 0 <= float(metrics["adversarial_error"]) <= 100


@pytest.mark.parametrize("norm", ["saauxbn@2", "bn"])
def test_evaluations_have_the_errors_of_both_branches(norm):
    task = train(replace(ADVPROP, norm=norm, epochs=3, lr=0.1)).trainer.task
    assert isinstance(task, AdvProp)
    metrics = task.eval().evaluate()
    for name, values in task.items.items():
        error = np.mean(values) if name.startswith("loss") else 100 - 100 * np.mean(values)
        assert error == pytest.approx(metrics[name]), name
    assert task.items.keys() == metrics.keys()
    names = {"loss", "error", *(f"robust_error_{attack}{mode}" for attack in ("pgd2", "fgsm") for mode in ("", "_train_mode"))}
    assert set(metrics) == names | {f"{name}_adversarial_branch" for name in names}
    for domain, suffix in ((CLEAN, ""), (ADVERSARIAL, "_adversarial_branch")):
        with anynorm.condition(task.model, domain, strict=False):
            expected = Classification.evaluation(task).metrics
        assert {f"{name}{suffix}": value for name, value in expected.items()}.items() <= metrics.items()
    is_same = metrics["loss"] == metrics["loss_adversarial_branch"]
    assert is_same == (norm == "bn")


def test_every_evaluation_can_have_the_loss_of_attacked_images_by_the_adversarial_branch():
    config = replace(ADVPROP, options={**ADVPROP.option_values, "loss_attack": "pgd:2", "num_attacked": 30})
    trainer = train(config).trainer
    assert all("test_adversarial_loss" in point for point in trainer.curve.points)
    task: Any = trainer.task.eval()
    model, attack = pixel_model(task.model, task.data), PGD(2, epsilon=0.1)
    images, labels = task.data.test[0][:30].float() / 255, task.data.test[1][:30]
    with anynorm.condition(task.model, ADVERSARIAL):
        adversarial = attack(model, images, labels, torch.Generator().manual_seed(1_000_003))
        expected = nn.functional.cross_entropy(model(adversarial), labels)
    with torch.no_grad():
        metrics = task.evaluate()
    assert metrics["adversarial_loss"] == pytest.approx(float(expected.detach()), rel=1e-4)
    assert metrics["adversarial_loss"] > metrics["loss_adversarial_branch"] - 0.5  # of other images
    assert len(task.items["adversarial_loss"]) == 30
    assert np.mean(task.items["adversarial_loss"]) == pytest.approx(metrics["adversarial_loss"])
    with pytest.raises(anynorm.SpecError, match="got 'pgd2'"):
        make_task(replace(ADVPROP, options={"loss_attack": "pgd2"}))


def test_test_batches_set_the_clean_branch_while_they_are_used():
    task: Any = make_task(ADVPROP).eval()
    norms = [module for module in task.model.modules() if getattr(module, "takes_condition", False)]
    batches = task.eval_batches(10)
    x, _ = next(batches)
    assert task.model(x).shape == (10, 10)
    batches.close()
    assert all(norm._condition is None for norm in norms)
    task.sampler = trainer_of(ADVPROP).task.sampler
    task.check()
    assert all(norm._condition is None for norm in norms)


def test_attacks_can_be_sent_to_worker_processes():
    assert pickle.loads(pickle.dumps(PGD(4, norm_mode="train"))) == PGD(4, norm_mode="train")
