"""Domain adaptation: the tasks, their baselines, what they may not use, and what is refused."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.models import build_model
from anynorm.lab.models.classifier import features_and_logits, find_classifier
from anynorm.lab.models.cosine import CosineLinear
from anynorm.lab.tasks import make_task, task_class
from anynorm.lab.tasks.adaptation.can import CAN, choose_classes, draw_per_class, filter_labels
from anynorm.lab.tasks.adaptation.data import load_pair
from anynorm.lab.tasks.adaptation.spherical_kmeans import class_centers, match_clusters, spherical_kmeans
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.training.config import Config, hash_sources
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.sampler import derive_seed
from anynorm.lab.training.trainer import update_average
from anynorm.layers.norm import Norm
from tests.helpers import same

LOOPS = {"source_epochs": 1, "steps_per_loop": 3, "adaptation_lr": 0.01}
QUICK = Config(
    task="source_only", model="small", width=0.5, num_train=160, num_test=64, batch_size=32, epochs=2, lr=0.05, num_evals=2,
    schedule="constant",
)  # fmt: skip
QUICK_CAN = replace(QUICK, task="can", norm="bn.aux@2", options=LOOPS)
pytestmark = pytest.mark.filterwarnings("ignore:clusters? .* no sample")


def trained(config, steps):
    trainer: Any = make_trainer(config)
    for _ in range(steps):
        trainer.training_step()
    return trainer


def changed(**options):
    return replace(QUICK_CAN, options=LOOPS | options)


# Source and AdaBN -----------------------------------------------------------------------------------------------------------


def test_the_source_is_trained_and_the_target_tested():
    task: Any = make_task(QUICK)
    pair = load_pair("digits", "digits-faded")
    assert torch.equal(task.data.test[0], pair.target_test[0][:64])
    assert len(task.target_images) == task.num_samples == 160
    rows = {row.numpy().tobytes() for row in pair.target}
    assert all(row.numpy().tobytes() in rows for row in task.target_images)
    assert float(task.data.mean) == pytest.approx(float(pair.source[0].double().mean()), rel=1e-5)


def test_the_source_epochs_of_can_are_those_of_source_only():
    alone, adapting = trained(QUICK, 5).task, trained(QUICK_CAN, 5).task
    for one, other in zip(alone.modules(), adapting.modules(), strict=True):
        if isinstance(one, Norm):
            assert torch.equal(one.weight, other.class_weight[0])
            assert torch.equal(one.running_mean, other.running_mean[0])
            assert not other.running_mean[1].any()
        elif isinstance(one, nn.Conv2d | nn.Linear):
            assert torch.equal(one.weight, other.weight)


def test_the_norms_of_the_target_start_as_copies_of_those_of_the_source():
    trainer = trained(QUICK_CAN, 5)
    expected = copy.deepcopy(trainer.task.model)
    anynorm.copy_domain(expected)
    states: list[dict[str, torch.Tensor]] = []
    trainer.task.assign_labels = lambda _: states.append({k: v.clone() for k, v in trainer.task.model.state_dict().items()})
    trainer.task.adaptation_loss = lambda *_: {"loss": sum(parameter.sum() for parameter in trainer.task.parameters())}
    trainer.training_step()
    for name, value in expected.state_dict().items():
        assert torch.equal(states[0][name], value), name


@pytest.mark.parametrize("name", ["can", "dsbn"])
def test_the_norms_of_the_target_in_a_moving_average_start_as_copies_of_its_own_source(name):
    trainer = trained(replace(QUICK_CAN, task=name, ema_decay=0.9), 5)
    expected = copy.deepcopy(trainer.averages["model"])
    anynorm.copy_domain(expected)
    trainer.training_step()
    update_average(expected, trainer.task.model, 0.9)
    for key, value in trainer.averages["model"].state_dict().items():
        assert torch.equal(value, expected.state_dict()[key]), key


def test_adabn_tests_with_the_statistics_of_the_target():
    trainer = trained(replace(QUICK, task="adabn"), 5)
    task = trainer.task.eval()
    model = copy.deepcopy(task.model)
    anynorm.recalibrate(model, task.data.standardize(task.target_images))
    x, labels = task.data.standardize(task.data.test[0]), task.data.test[1]
    with torch.no_grad():
        expected = 100 * float((model(x).argmax(1) != labels).float().mean())
        assert task.evaluate()["error"] == pytest.approx(expected)
        assert task.evaluate_recalibrated().metrics == task.evaluate()
    plain = trained(QUICK, 5).task.eval()
    with torch.no_grad():
        assert plain.evaluate()["error"] != pytest.approx(expected)


def test_adabn_of_norms_without_running_statistics_is_source_only():
    one, other = (trained(replace(QUICK, task=name, norm="gn:4"), 2).task.eval() for name in ("adabn", "source_only"))
    with torch.no_grad():
        assert one.evaluate() == other.evaluate()


# CAN ------------------------------------------------------------------------------------------------------------------------


def test_labels_of_the_target_are_for_the_evaluation_alone():
    pair = load_pair("digits", "digits-faded")
    shuffled = replace(pair, target_test=(pair.target_test[0], pair.target_test[1].roll(7)))
    for name in ("can", "dsbn"):
        config = replace(QUICK_CAN, task=name)
        ends = []
        for data in (pair, shuffled):
            torch.manual_seed(0)
            task: Any = task_class(name)
            ends.append(train(config, task=task(config, data)).trainer)
        for key, value in ends[0].task.state_dict().items():
            assert torch.equal(value, ends[1].task.state_dict()[key]), key
        assert ends[0].curve.points[-1]["test_error"] != ends[1].curve.points[-1]["test_error"]


def test_the_loss_of_a_step_is_cross_entropy_plus_the_discrepancy_of_clustered_classes():
    trainer = trained(QUICK_CAN, 5)
    task = trainer.task
    trainer.training_step()  # begins the first loop
    assert int(task.num_loops) == 1
    copied = copy.deepcopy(task)
    copied.sampler, copied.processes = task.sampler, task.processes
    assignments = task.assignments.clone()
    trainer.training_step()
    assert torch.equal(task.assignments, assignments)  # the same loop
    images, labels = copied.training_batch(6)
    generator = torch.Generator().manual_seed(torch_seed(6))
    metrics = copied.adaptation_loss(images, labels, generator)
    generator = torch.Generator().manual_seed(torch_seed(6))
    classes = choose_classes(assignments, 10, generator)
    chosen = [draw_per_class(each, classes, 3, generator) for each in (copied.data.train[1], assignments)]
    layers = []
    for domain, (all_images, indices) in enumerate(zip((copied.data.train[0], copied.target_images), chosen, strict=True)):
        with anynorm.condition(copied.model, domain):
            features, logits = features_and_logits(
                copied.model, find_classifier(copied.model), copied.data.standardize(all_images[indices.flatten()])
            )
        layers.append([tensor.unflatten(0, indices.shape) for tensor in (features, logits.softmax(1))])
    with anynorm.condition(copied.model, 0):
        cross_entropy = nn.functional.cross_entropy(copied.model(images), labels)
    expected = cross_entropy + 0.3 * copied.discrepancy(*layers)
    same(metrics["loss"], expected)
    assert metrics["cdd"].item() != 0


@pytest.mark.parametrize("name", ["can", "dsbn"])
def test_labels_are_smoothed_in_the_adaptation_as_on_the_source(name):
    trainer = trained(replace(QUICK_CAN, task=name, norm="gn:4", label_smoothing=0.3), 6)
    task = trainer.task
    images, labels = task.training_batch(6)
    metrics = task.adaptation_loss(images, labels, torch.Generator().manual_seed(0))
    same(metrics["source_loss"], nn.functional.cross_entropy(task.model(images), labels, label_smoothing=0.3))
    if name == "dsbn":
        chosen = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:32]
        logits = task.model(task.data.standardize(task.target_images[chosen]))
        expected = nn.functional.cross_entropy(logits, task.pseudo_labels[chosen], label_smoothing=0.3)
        same(metrics["target_loss"], expected)


def torch_seed(step):
    return derive_seed(0, 4, step)


def test_assignments_are_the_matched_clusters_of_the_target():
    trainer = trained(QUICK_CAN, 5)
    task = trainer.task
    anynorm.copy_domain(task.model)
    task.model.eval()
    with torch.no_grad():
        outputs = []
        for domain, images in enumerate((task.data.train[0], task.target_images)):
            with anynorm.condition(task.model, domain):
                outputs.append(features_and_logits(task.model, find_classifier(task.model), task.data.standardize(images))[0])
        centers = class_centers(outputs[0], task.data.train[1], 10)
        clusters = spherical_kmeans(outputs[1], centers)
    expected = match_clusters(clusters.centers, centers)[clusters.labels]
    task.model.train()
    trainer.training_step()
    counts = expected.bincount(minlength=10)
    assert torch.equal(task.assignments, torch.where(counts[expected] >= 3, expected, -1))
    assert all(module.training for module in task.modules())


@pytest.mark.parametrize("norm", ["bn", "gn:4", "bgn:4.aux@2", "in.cc@2", "sn.aux@2"])
def test_norms_may_be_shared_or_domain_specific(norm):
    trainer = trained(replace(QUICK_CAN, norm=norm), 7)
    assert int(trainer.task.num_loops) == 1
    trainer.evaluate()
    task = trainer.task.eval()
    x, labels = task.data.standardize(task.data.test[0]), task.data.test[1]
    with anynorm.condition(task.model, 1, strict=False), torch.no_grad():
        errors = (task.model(x).argmax(1) != labels).float()
    assert trainer.curve.points[-1]["test_error"] == pytest.approx(100 * float(errors.mean()))
    specific = [norm for norm in task.model.modules() if isinstance(norm, Norm) and norm.takes_condition]
    assert bool(specific) == ("@2" in trainer.config.norm)
    assert all(not torch.equal(norm.class_weight[0], norm.class_weight[1]) for norm in specific)  # updated apart


def test_the_norms_of_the_target_are_tested_once_adaptation_has_begun():
    trainer = trained(QUICK_CAN, 5)
    with trainer.evaluation_networks() as task, torch.no_grad():
        before = task.evaluate()
    assert "adabn_error" in before
    trainer.training_step()
    with trainer.evaluation_networks() as task, torch.no_grad():
        after = task.evaluate()
        assert "adabn_error" not in after
        with anynorm.condition(task.model, 1):
            logits = task.model(task.data.standardize(task.data.test[0]))
    assert after["error"] == pytest.approx(100 * float((logits.argmax(1) != task.data.test[1]).float().mean()))


def test_far_samples_and_small_classes_lose_their_labels():
    labels, distances = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0.1, 0.2, 0.6, 0.1, 0.3, 0.1])
    assert filter_labels(labels, distances, 0.5, 2, 4).tolist() == [0, 0, -1, 1, 1, -1]
    assert filter_labels(labels, distances, 1.0, 1, 4).tolist() == labels.tolist()
    assert filter_labels(labels, distances, 0.05, 1, 4).tolist() == [-1] * 6


def test_class_aware_batches_have_samples_of_their_classes():
    labels = torch.tensor([4, 4, 4, 4, -1, 2, 2, 7])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        classes = choose_classes(labels, 2, generator)
        assert len(set(classes.tolist())) == 2
        chosen = draw_per_class(labels, classes, 3, generator)
        assert torch.equal(labels[chosen], classes[:, None].expand(2, 3))
        four = chosen[classes == 4]
        assert all(len(set(row.tolist())) == 3 for row in four)  # without replacement, where a class has enough
    assert set(choose_classes(labels, 9, generator).tolist()) == {2, 4, 7}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_optimizer_of_the_adaptation_has_the_settings_of_the_run(optimizer):
    config = replace(changed(head_lr_factor=10.0), optimizer=optimizer, decay_norms=False, nesterov=True, weight_decay=0.01)
    optimizers = make_trainer(config).optimizers
    assert type(optimizers["adaptation"]) is type(optimizers["main"])
    decays = [
        {parameter: group["weight_decay"] for group in each.param_groups for parameter in group["params"]}
        for each in (optimizers["main"], optimizers["adaptation"])
    ]
    assert decays[0] == decays[1]
    assert set(decays[0].values()) == {0.0, 0.01}
    rates = [group["initial_lr"] for group in optimizers["adaptation"].param_groups]
    assert rates == pytest.approx([0.01, 0.01, 0.1, 0.1])
    for name in {"momentum", "nesterov"} & set(optimizers["main"].defaults):
        assert optimizers["adaptation"].defaults[name] == optimizers["main"].defaults[name], name


def test_a_loop_without_two_classes_trains_on_the_source_with_a_warning():
    trainer = trained(changed(max_distance=1e-9), 5)
    with pytest.warns(UserWarning, match=r"fewer than 2 classes .* within max_distance=1e-09 in loop 1: .* source alone"):
        trainer.training_step()
    trainer.training_step()
    assert (trainer.task.assignments == -1).all()


def test_the_learning_rate_of_the_adaptation_decays_every_few_updates():
    trainer = trained(changed(decay_steps=2, decay_rate=0.1, head_lr_factor=10.0), 5)
    rates = []
    for _ in range(5):
        trainer.training_step()
        rates.append([group["lr"] for group in trainer.optimizers["adaptation"].param_groups])
    assert [round(body, 6) for body, _ in rates] == [0.01, 0.01, 0.001, 0.001, 0.0001]
    assert all(head == pytest.approx(10 * body) for body, head in rates)


@pytest.mark.parametrize("options", [{"max_loops": 1}, {"stop_distance": 1.0}])
def test_a_stopped_adaptation_changes_nothing_more(options):
    trainer = trained(changed(**options), 8 if "max_loops" in options else 5)
    before = copy.deepcopy(trainer.task.model.state_dict())
    trainer.training_step()
    if "stop_distance" in options:  # the first loop copies the norms of the source to the target, then stops
        before = copy.deepcopy(trainer.task.model.state_dict())
        assert 0 < float(trainer.task.center_distance) < 1
    trainer.training_step()
    assert bool(trainer.task.stopped)
    assert int(trainer.task.num_loops) == 1
    assert all(torch.equal(value, before[name]) for name, value in trainer.task.model.state_dict().items())


def test_the_distance_of_centers_is_that_of_each_class_in_source_and_target():
    task: Any = trained(changed(stop_distance=1.0), 6).task  # stopped before the first update
    centers = class_centers(task.outputs(task.data.train[0], 0)[0], task.data.train[1], 10)
    clusters = spherical_kmeans(task.outputs(task.target_images, 1)[0], centers)
    classes = match_clusters(clusters.centers, centers)
    expected = [(1 - float(clusters.centers[k] @ centers[classes[k]])) / 2 for k in range(10)]
    assert float(task.center_distance) == pytest.approx(sum(expected) / 10, abs=1e-6)


def test_the_two_readings_of_the_loss_differ_by_the_number_of_classes():
    task: Any = make_task(changed(classes_per_batch=4))
    other: Any = make_task(replace(changed(classes_per_batch=4), task="can_all_classes"))
    layers = [[torch.randn(4, 3, 5)] for _ in range(2)]
    assert isinstance(other, CAN)
    assert float(task.discrepancy(*layers)) != pytest.approx(float(other.discrepancy(*layers)), rel=1e-3)
    ten = [[torch.randn(10, 3, 5)] for _ in range(2)]
    same(task.discrepancy(*ten), other.discrepancy(*ten))


def test_statistics_of_the_target_may_be_estimated_before_the_first_loop():
    trainer = trained(changed(recalibrate=True), 5)
    expected = copy.deepcopy(trainer.task.model)
    anynorm.copy_domain(expected)
    with anynorm.condition(expected, 1):
        anynorm.recalibrate(expected, trainer.task.data.standardize(trainer.task.target_images))
    states: list[dict[str, torch.Tensor]] = []
    trainer.task.assign_labels = lambda _: states.append({k: v.clone() for k, v in trainer.task.model.state_dict().items()})
    trainer.task.adaptation_loss = lambda *_: {"loss": sum(parameter.sum() for parameter in trainer.task.parameters())}
    trainer.training_step()
    for name, value in expected.state_dict().items():
        assert torch.equal(states[0][name], value), name


# DSBN -----------------------------------------------------------------------------------------------------------------------


def test_pseudo_labels_move_from_the_first_stage_to_the_network():
    trainer = trained(replace(QUICK_CAN, task="dsbn"), 5)
    task = trainer.task
    trainer.training_step()
    assert torch.equal(task.pseudo_labels, task.first_probabilities.argmax(1))
    same(task.first_probabilities.sum(1), torch.ones(160))
    trainer.training_step()
    trainer.training_step()
    trainer.training_step()  # begins the second loop, 3 of 5 steps after the first
    share = 2 / (1 + math.exp(-10 * 3 / 5)) - 1
    trainer = trained(replace(QUICK_CAN, task="dsbn"), 8)
    now = trainer.task.outputs(trainer.task.target_images, 1)[1].softmax(1)
    expected = ((1 - share) * task.first_probabilities + share * now).argmax(1)
    assert torch.equal(task.pseudo_labels, expected)


# Pretrained models ----------------------------------------------------------------------------------------------------------


def pretrained(shape):
    """Return a network whose norms have statistics of digits, as a pretrained one."""
    torch.manual_seed(3)
    model = build_model("small", shape, 0.5)
    pair = load_pair("digits", "digits-faded")
    for _ in range(3):
        model(pair.standardize(pair.source[0][:256]))
    return model


@pytest.mark.parametrize("norm", ["bn.aux@2", "gn:4.cc@2"])
def test_norms_of_a_pretrained_model_are_fitted_to_its_outputs_in_both_domains(norm):
    config = replace(QUICK, model="tests.lab.tasks.adaptation.test_task:pretrained", norm=norm, options={"fit_images": 128})
    task: Any = make_task(config).eval()
    original = pretrained(task.data.shape).eval()
    x = task.data.standardize(task.data.train[0][:128])
    copied = Layout.parse(norm, 32).apply(pretrained(task.data.shape)).eval()
    errors = []
    with torch.no_grad():
        target = original(x)
        for model in (task.model, copied):
            for domain in (0, 1):
                with anynorm.condition(model, domain):
                    errors.append(float((model(x) - target).norm() / target.norm()))
    assert errors[0] == errors[1]
    assert errors[0] < 1e-5 if norm.startswith("bn") else errors[0] < 0.8 * errors[2]


def test_a_change_of_the_factory_of_the_target_makes_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "target_for_hashing.py"
    source.write_text("def digits():\n    return 1\n")
    config = replace(QUICK, options={"target": "target_for_hashing:digits"})
    before = hash_sources(config)
    assert before
    source.write_text("def digits():\n    return 2\n")
    assert hash_sources(config) not in ("", before)
    for name in ("digits-faded", "hf:mnist", "missing.module:digits", "pgd:4", "torch:float32"):
        assert hash_sources(replace(QUICK, options={"target": name})) == ""


# What is refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (
            replace(QUICK, norm="bn.aux@3"),
            anynorm.SpecError,
            r"no classes or two domains.*; got bn\.aux@3\. Usable: bn bn\.aux@2",
        ),
        (replace(QUICK, norm="adain"), anynorm.SpecError, r"no classes or two domains.*; got "),
        (replace(QUICK_CAN, grad_accum_steps=2), anynorm.SpecError, "grad_accum_steps must be 1, got 2"),
        (changed(source_epochs=2), anynorm.SpecError, "source_epochs must be less than epochs=2; got 2"),
        (changed(steps_per_loop=0), anynorm.SpecError, "steps_per_loop must be at least 1; got 0"),
        (changed(adaptation_lr=-1.0), anynorm.SpecError, r"adaptation_lr must be 0 or more; got -1\.0"),
        (changed(classes_per_batch=1), anynorm.SpecError, "classes_per_batch must be at least 2; got 1"),
        (changed(target="mnits"), anynorm.DataError, "unknown dataset 'mnits'"),
        (changed(target="digits@4"), anynorm.DataError, r"images of both domains must be of one size.* Write digits@4"),
        (
            replace(QUICK, norm="xbn=gn:4", options={"fit_images": 64}),
            anynorm.SpecError,
            r"the norms of XBN blocks cannot be fitted; got xbn.p2.d1=gn:4",
        ),
    ],
)
def test_settings_without_meaning_are_refused(config, error, message):
    with pytest.raises(error, match=message):
        make_task(config)


def convolutional(shape):
    return nn.Sequential(
        nn.Conv2d(shape.channels, shape.num_classes, 3), nn.BatchNorm2d(10), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def cosine(shape):
    layers = [nn.Conv2d(shape.channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, CosineLinear(8, shape.num_classes))


def test_adaptation_needs_a_model_with_a_classifier():
    with pytest.raises(anynorm.SurgeryError, match=r"This Sequential has no classifier: no module is an nn\.Linear or"):
        make_trainer(replace(QUICK_CAN, model=f"{__name__}:convolutional"))


def test_a_cosine_classifier_can_be_adapted():
    trainer = trained(replace(QUICK_CAN, model=f"{__name__}:cosine", num_train=64), 3)
    assert int(trainer.task.num_loops) == 1
    head = trainer.optimizers["adaptation"].param_groups[1]["params"]
    assert {id(parameter) for parameter in head} == {id(parameter) for parameter in trainer.task.model[-1].parameters()}


def test_features_have_the_graph_of_the_last_layer_and_no_hook_stays():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x, layer = torch.randn(5, 3), find_classifier(model)
    features, logits = features_and_logits(model, layer, x)
    assert torch.equal(features, model[0](x).relu())
    assert torch.equal(logits, model(x))
    features.sum().backward()
    assert model[0].weight.grad is not None
    assert not model[2]._forward_pre_hooks
    with pytest.raises(RuntimeError):
        features_and_logits(model, layer, torch.randn(5, 7))
    assert not model[2]._forward_pre_hooks
