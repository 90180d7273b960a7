"""Few-shot classification by imprinted weights (Qi et al. 2018): train on base classes, classify novel ones from a few images.

A network with a cosine classifier is trained on the base classes by cross entropy. It is evaluated by episodes of novel classes
(see `episodes`), whose features are computed in eval mode: the statistics of norms are those of the training, and
the features of an image do not depend on the batch. Metrics, for each number of shots K, in percent:

    K-shot accuracy                  mean over episodes, imprinted weights
    K-shot accuracy (prototypes)     the same features, nearest mean
    K-shot accuracy (transductive)   with the option `transductive`: norms use the statistics of the queries of an episode, which
                                     are not available for a single image
    …, 95 % CI                       half the width of the confidence interval over episodes
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.errors import DataError
from anynorm.lab.models.classifier import TOLERANCE, batch_dependence, extract_features, features_and_logits, find_classifier
from anynorm.lab.models.cosine import CosineLinear
from anynorm.lab.tasks.classification.classifier import Classifier
from anynorm.lab.tasks.few_shot.data import FewShotDataset, load_few_shot_cached
from anynorm.lab.tasks.few_shot.episodes import (
    Episodes,
    Score,
    confidence_interval,
    draw_episodes,
    episode_accuracy,
    imprint_scores,
    prototype_scores,
)
from anynorm.lab.tasks.few_shot.options import FewShotOptions
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.task import Metric

SCORES: dict[str, Score] = {"": imprint_scores, " (prototypes)": prototype_scores}
TRANSDUCTIVE = " (transductive)"


class FewShot(Classifier[FewShotOptions]):
    """Few-shot classification by imprinted weights (Qi et al. 2018): novel classes from a few images of each.

    The last `nn.Linear` of a model becomes a cosine classifier; `resnet12` has one.

    Args:
        config: the run; `config.data` is a name of `anynorm.lab.tasks.few_shot.data`.
        data: all images; None for those of `config.data`.

    Raises:
        DataError: if the data set has fewer classes or images than an episode needs.
    """

    metric: ClassVar[Metric] = Metric("1-shot accuracy", "%", higher_is_better=True)
    has_validation: ClassVar[bool] = False  # validation data are other classes, such as those of omniglot-validation
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:8", "bgn"),
        batch_sizes=(32,),
        base=Config(model="resnet12", epochs=5, lr=0.1, width=0.125, num_evals=1, options=FewShotOptions(num_ways=4, padding=4)),
    )

    def __init__(self, config: Config, data: FewShotDataset | None = None) -> None:
        options = type(self).options_of(config)
        if config.num_test is not None:
            raise DataError(
                f"few_shot tests with episodes of all novel images; got num_test={config.num_test}. Use num_episodes."
            )
        if options.transductive and config.devices > 1:
            raise DataError(f"transductive statistics need one process; got devices={config.devices}.")
        few_shot = load_data(config) if data is None else data
        few_shot = few_shot.choose_base_classes(options.num_base_classes, config.seed).pad(options.padding)
        super().__init__(config, few_shot.as_image_dataset())
        set_cosine_classifier(self.model)
        self.episodes = draw_episodes(
            few_shot.novel[1],
            options.num_episodes,
            num_ways=options.num_ways,
            num_shots=max(options.shots),
            num_queries=options.num_queries,
            groups=few_shot.novel_groups if options.within_alphabet else None,
            seed=options.episode_seed,
        )

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the accuracy with the first number of shots."""
        shots = cls.options_of(config).shots
        return cls.metric._replace(name=metric_name(shots[0]))

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_data(config)

    def evaluation(self) -> Evaluation:
        """Return the accuracies and their confidence intervals over episodes, which are divided among the processes.

        The items are the episodes, which are random draws of the novel images: they tell how much an accuracy depends on the
        draw, not on the choice of the novel classes.
        """
        self.check_features()
        episodes = self.episodes.part(self.processes.rank, self.processes.count)
        features = self._features(episodes)
        evaluation = Evaluation()
        for shots in self.options.shots:
            for suffix, score in SCORES.items():
                accuracies = [
                    episode_accuracy(score, features[support[:, :shots]], features[query])
                    for support, query in zip(*episodes, strict=True)
                ]
                evaluation |= self._summary(metric_name(shots, suffix), accuracies)
            if self.options.transductive:
                evaluation |= self._summary(metric_name(shots, TRANSDUCTIVE), self._transductive_accuracies(shots))
        return evaluation

    def eval_batches(self, batch_size: int) -> Iterator[Tensor]:  # type: ignore[override]
        """Yield standardized novel images, in order, without labels: the classifier has no logits of novel classes."""
        for x, _ in super().eval_batches(batch_size):
            yield x

    def _features(self, episodes: Episodes) -> Tensor:
        """Return the features of all novel images; zeros for images that no episode uses."""
        used = torch.cat([images.flatten() for images in episodes]).bincount().nonzero().flatten()
        parts = []
        for indices in torch.split(used, self._eval_batch_size()):
            parts.append(extract_features(self.model, self._novel_images(indices)).float().cpu())
        values = torch.cat(parts)
        return torch.zeros(len(self.data.test[1]), values.shape[1]).index_copy_(0, used, values)

    def _novel_images(self, indices: Tensor) -> Tensor:
        images: Tensor = self.to_device(self.data.standardize(self.data.test[0][indices]))
        return images

    def _transductive_accuracies(self, shots: int) -> list[float]:
        """Return the accuracies of imprinted weights; norms use the statistics of the shots, or of the queries, of an episode."""
        layer = find_classifier(self.model)
        accuracies = []
        for support, query in zip(*self.episodes, strict=True):
            parts = []
            for indices in (support[:, :shots], query):
                with batch_statistics(self.model):
                    features, _ = features_and_logits(self.model, layer, self._novel_images(indices.flatten()))
                parts.append(features.float().cpu().reshape(*indices.shape, -1))
            accuracies.append(episode_accuracy(imprint_scores, *parts))
        return accuracies

    def _summary(self, name: str, accuracies: list[float]) -> Evaluation:
        """Return mean and confidence interval over the episodes of all processes."""
        values = torch.zeros(len(self.episodes.query), dtype=torch.float64)
        values[self.processes.rank :: self.processes.count] = torch.tensor(accuracies, dtype=torch.float64)
        everything = self.processes.sum(values.tolist())
        metrics = {name: statistics.fmean(everything), f"{name}, 95 % CI": confidence_interval(everything)}
        return Evaluation(metrics, {name: everything})

    def check(self) -> None:
        """Raise DataError if the model fails on the images, or its features depend on the batch in eval mode."""
        super().check()
        self.check_features()

    def check_features(self) -> None:
        """Check that the features of an image do not depend on the batch.

        Raises:
            DataError: if they do.
        """
        difference = batch_dependence(self.model, self._novel_images(self.episodes.query[0, 0, :1]))
        if difference > TOLERANCE:
            raise DataError(
                "the features of an image must not depend on the other images of its batch in eval mode; they differ by "
                f"{100 * difference:.2g} %. Statistics of query batches are transductive: use norms with running "
                "statistics, and the option transductive=true to measure both."
            )


def load_data(config: Config) -> FewShotDataset:
    """Return the data set of a run, loaded once per process."""
    return load_few_shot_cached(config.data, config.image_size, config.source_hash, config.skip_unreadable)


def metric_name(shots: int, suffix: str = "") -> str:
    """Return the name of an accuracy.

    >>> metric_name(5, " (prototypes)")
    '5-shot accuracy (prototypes)'
    """
    return f"{shots}-shot accuracy{suffix}"


def set_cosine_classifier(model: nn.Module) -> None:
    """Replace the last `nn.Linear` of a model by a cosine classifier, unless it has one.

    Raises:
        SurgeryError: if the model has no classifier.
    """
    path, layer = find_classifier(model)
    if isinstance(layer, nn.Linear):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, CosineLinear(layer.in_features, layer.out_features))
