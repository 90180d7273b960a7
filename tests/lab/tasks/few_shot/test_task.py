"""Episodes are the same for every norm and training; accuracies are those of a naive loop; impossible episodes are refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.tasks.few_shot.data import FewShotDataset
from anynorm.lab.tasks.few_shot.episodes import (
    confidence_interval,
    draw_episodes,
    episode_accuracy,
    imprint_scores,
    prototype_scores,
)
from anynorm.lab.tasks.few_shot.task import FewShot
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config

OPTIONS = {"padding": 4, "num_ways": 4, "num_episodes": 6, "num_queries": 5}
CONFIG = Config(
    task="few_shot", model="resnet12", width=0.125, num_train=64, batch_size=16, epochs=1, lr=0.05, num_evals=1, options=OPTIONS
)


def with_options(**options):
    return replace(CONFIG, options=OPTIONS | options)


def labels_of(*counts):
    return torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])


# Episodes


def test_an_episode_has_disjoint_images_of_different_classes():
    labels = labels_of(*[12] * 7)[torch.randperm(84)]
    episodes = draw_episodes(labels, 50, num_ways=5, num_shots=3, num_queries=4)
    assert episodes.support.shape == (50, 5, 3)
    assert episodes.query.shape == (50, 5, 4)
    for support, query in zip(*episodes, strict=True):
        images = torch.cat([support, query], 1)
        assert len(images.unique()) == 35
        classes = labels[images]
        assert (classes == classes[:, :1]).all()
        assert len(classes[:, 0].unique()) == 5
    assert len(episodes.support[:, 0].unique()) > 40  # over all classes and images


def test_the_classes_of_an_episode_are_of_one_alphabet_that_has_enough():
    groups = torch.tensor([0, 1, 0, 1, 2, 0, 1])  # 3, 3 and 1 classes
    labels = labels_of(*[4] * 7)
    episodes = draw_episodes(labels, 40, num_ways=3, num_shots=1, num_queries=2, groups=groups)
    drawn = groups[labels[episodes.query[:, :, 0]]]
    assert (drawn == drawn[:, :1]).all()
    assert set(drawn[:, 0].tolist()) == {0, 1}


def test_episodes_are_the_same_for_every_norm_seed_and_number_of_shots():
    first = FewShot(CONFIG).episodes
    for other in (replace(CONFIG, norm="gn:8"), replace(CONFIG, seed=3), replace(CONFIG, model="small")):
        assert all(map(torch.equal, FewShot(other).episodes, first))
    fewer = FewShot(with_options(shots="1")).episodes
    assert torch.equal(fewer.query, first.query)
    assert torch.equal(fewer.support, first.support[..., :1])
    assert not torch.equal(FewShot(with_options(episode_seed=1)).episodes.query, first.query)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ways": 5}, r"an episode needs 5 novel classes \(num_ways\); got 4\. Use fewer ways"),
        ({"num_ways": 3, "groups": torch.tensor([0, 0, 1, 1])}, r"needs 3 novel classes of one group \(alphabet\) .*; got 2"),
        ({"num_queries": 8}, r"needs 1 \+ 8 images per class \(shots \+ num_queries\); novel class 2 has 6\. Use fewer queries"),
        ({"num_ways": 1}, r"num_ways must be at least 2; got 1"),
        ({"num_shots": 0}, r"num_shots must be at least 1; got 0"),
        ({"num_queries": 0}, r"num_queries must be at least 1; got 0"),
        ({"num_episodes": 1}, r"num_episodes must be at least 2; got 1"),
    ],
)
def test_an_episode_that_the_data_do_not_have_is_refused(arguments, message):
    options = {"num_ways": 4, "num_shots": 1, "num_queries": 2, "num_episodes": 3} | arguments
    with pytest.raises(anynorm.DataError, match=message):
        draw_episodes(labels_of(9, 9, 6, 9), **options)


def naive_accuracy(features, support, query, distance):
    features, right, total = features.tolist(), 0, 0
    for truth, images in enumerate(query.tolist()):
        for image in images:
            distances = [distance(features[image], [features[k] for k in shots]) for shots in support.tolist()]
            right += distances.index(min(distances)) == truth
            total += 1
    return 100 * right / total


def imprint_distance(query, shots):
    zero = [0.0] * len(query)
    lengths = [math.dist(shot, zero) for shot in shots]
    mean = [sum(shot[k] / length for shot, length in zip(shots, lengths, strict=True)) for k in range(len(query))]
    return -sum(a * b for a, b in zip(query, mean, strict=True)) / math.dist(mean, zero)


def prototype_distance(query, shots):
    return math.dist(query, [sum(shot[k] for shot in shots) / len(shots) for k in range(len(query))])


@pytest.mark.parametrize(("score", "distance"), [(imprint_scores, imprint_distance), (prototype_scores, prototype_distance)])
@pytest.mark.parametrize("num_shots", [1, 3])
def test_the_accuracy_of_an_episode_is_that_of_a_naive_loop(score, distance, num_shots):
    generator = torch.Generator().manual_seed(0)
    labels = labels_of(8, 8, 8)
    features = torch.randn(24, 5, generator=generator).double() + 1.5 * torch.randn(3, 5, generator=generator).double()[labels]
    episodes = draw_episodes(labels, 4, num_ways=3, num_shots=num_shots, num_queries=4)
    accuracies = []
    for support, query in zip(*episodes, strict=True):
        accuracy = episode_accuracy(score, features[support], features[query])
        assert accuracy == pytest.approx(naive_accuracy(features, support, query, distance))
        accuracies.append(accuracy)
    assert 33 < sum(accuracies) / 4 < 100


def test_the_confidence_interval_is_that_of_scipy():
    from scipy import stats

    values = [61.3, 74.7, 58.7, 80.0, 66.7]
    low, high = stats.norm.interval(0.95, loc=0, scale=stats.sem(values))
    assert confidence_interval(values) == pytest.approx((high - low) / 2, rel=1e-4)  # 1.96 is rounded


# The task


def test_the_metrics_of_an_evaluation_are_means_over_the_episodes():
    trainer = make_trainer(CONFIG)
    trainer.training_step()
    trainer.evaluate()
    task: Any = trainer.task
    point = trainer.curve.points[-1]
    task.eval()
    with torch.no_grad():
        features = torch.cat([task.model[:-1](x) for x in task.eval_batches(64)])
    for shots in (1, 5):
        accuracies = [
            naive_accuracy(features, support[:, :shots], query, imprint_distance)
            for support, query in zip(*task.episodes, strict=True)
        ]
        assert point[f"test_{shots}-shot accuracy"] == pytest.approx(sum(accuracies) / 6, abs=2)  # a tie may be broken otherwise
        assert point[f"test_{shots}-shot accuracy, 95 % CI"] == pytest.approx(confidence_interval(accuracies), abs=2)
        prototypes = [
            naive_accuracy(features, support[:, :shots], query, prototype_distance)
            for support, query in zip(*task.episodes, strict=True)
        ]
        assert point[f"test_{shots}-shot accuracy (prototypes)"] == pytest.approx(sum(prototypes) / 6, abs=2)
    assert not any("transductive" in name for name in point)
    with torch.no_grad():
        metrics = task.evaluate()
    assert not task.items  # this is not the last evaluation
    task.is_trained = True
    with torch.no_grad():
        assert task.evaluate() == metrics
    assert task.items.keys() == {name for name in metrics if "CI" not in name}
    for name, values in task.items.items():
        assert len(values) == 6
        assert sum(values) / 6 == pytest.approx(metrics[name])
    assert FewShot.metric_for(with_options(shots="5,1")).name == "5-shot accuracy"


def test_batches_of_a_diagnosis_are_novel_images_without_labels():
    task: Any = FewShot(CONFIG)
    batches = list(task.eval_batches(64))
    assert all(isinstance(batch, torch.Tensor) for batch in batches)
    assert torch.equal(torch.cat(batches), task.data.standardize(task.data.test[0]))


def test_transductive_statistics_have_metrics_of_their_own_and_leave_no_trace():
    trainer = make_trainer(with_options(transductive=True, num_episodes=3))
    trainer.training_step()
    before = {key: value.clone() for key, value in trainer.task.state_dict().items()}
    trainer.evaluate()
    point = trainer.curve.points[-1]
    assert {"test_1-shot accuracy (transductive)", "test_5-shot accuracy (transductive), 95 % CI"} <= set(point)
    assert (
        point["test_5-shot accuracy (transductive)"] != point["test_5-shot accuracy"]
    )  # after one step, running means are far off
    assert all(torch.equal(value, before[key]) for key, value in trainer.task.state_dict().items())
    with pytest.raises(anynorm.DataError, match="transductive statistics need one process; got devices=2"):
        FewShot(replace(with_options(transductive=True), devices=2))


def test_features_that_depend_on_the_query_batch_are_refused():
    task: Any = FewShot(CONFIG).eval()
    task.check_features()
    task.model[0].body[1] = nn.BatchNorm2d(8, track_running_stats=False).eval()
    with pytest.raises(anynorm.DataError, match=r"must not depend on the other images of its batch.*option transductive=true"):
        task.evaluate()


def test_any_model_with_a_linear_layer_gets_a_cosine_classifier():
    task: Any = make_trainer(replace(CONFIG, model="small")).task
    logits = task.eval().model(torch.randn(2, 1, 16, 16))
    assert logits.shape == (2, 6)
    assert logits.abs().max() <= 10
    task.check()


def without_classifier(shape, width=1.0):
    return nn.Sequential(
        nn.Conv2d(shape.channels, shape.num_classes, 3), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_options(num_ways=5), r"an episode needs 5 novel classes \(num_ways\); got 4"),
        (with_options(num_queries=180), r"an episode needs 5 \+ 180 images per class"),
        (with_options(num_base_classes=7), r"num_base_classes must be between 2 and the 6 base classes, or 0 for all; got 7"),
        (with_options(num_base_classes=1), r"num_base_classes must be between 2 .*; got 1"),
        (with_options(padding=-1), r"padding must be 0 or more; got -1"),
        (with_options(shots="1,x"), r"shots must be comma-separated integers; got '1,x'"),
        (with_options(shots="0"), r"shots must be at least 1; got \(0,\)"),
        (replace(CONFIG, num_test=9), r"tests with episodes of all novel images; got num_test=9\. Use num_episodes"),
        (replace(CONFIG, data="stream:photos"), r"reads all images into memory; stream:photos is decoded .* Use folder:PATH"),
        (replace(CONFIG, model=f"{__name__}:without_classifier"), r"This Sequential has no classifier"),
    ],
)
def test_settings_that_cannot_work_are_refused(config, message):
    with pytest.raises(anynorm.AnynormError, match=message):
        FewShot(config)


def test_a_data_set_of_one_base_class_is_refused():
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(anynorm.DataError, match="training needs at least 2 base classes; got 1"):
        FewShotDataset((images, torch.zeros(4).long()), (images, torch.arange(4)))
