"""Architecture search with any norm: the base of `darts` (gradients) and `manas` (bandits).

A step updates the architecture by a batch of one half of the training images, then the weights by a batch of the other half (or
the other way round, `weights_first`).
Norms use batch statistics in both updates and in the evaluation of the supernet. The updates of the weights also update running
statistics, which are those of the mixture of all operations. `path_evaluation` measures their error for a single
path.

Metrics: the error of the supernet, the number of skip connections in its architecture, the distance of softmax(α) from uniform
and, with a table of NAS-Bench-201, those of `metrics`. A norm that takes classes gets the operations before it; see `norms`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from typing_extensions import TypeVar

from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.errors import SpecError
from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.models.search import build_supernet
from anynorm.lab.models.search.supernet import Draw, MultinomialDraw, Supernet, first_operations
from anynorm.lab.tasks.classification.classifier import Classifier
from anynorm.lab.tasks.search.bilevel import frozen
from anynorm.lab.tasks.search.metrics import (
    check_table,
    distance_from_uniform,
    expected_accuracy_name,
    load_search_table,
    table_metrics,
)
from anynorm.lab.tasks.search.norms import set_supernet_norms
from anynorm.lab.tasks.search.options import SupernetOptions
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import Batch, split_images
from anynorm.lab.training.sampler import Sampler
from anynorm.lab.training.task import Metric, Metrics, TrainingLoop

EVALUATION_SEED = 1_000_003
"""Seed of the operations drawn in evaluations, the same for all runs."""
ALPHA_SEED = 500_009
"""Added to the seed of a run for the order of the images on which α is trained."""
WEIGHTS, ALPHA = 0, 1
"""The micro-batches of a step."""
SearchOptions_co = TypeVar("SearchOptions_co", bound=SupernetOptions, default=SupernetOptions, covariant=True)


class ArchitectureSearch(Classifier[SearchOptions_co]):
    """The base class of searches: a supernet, two halves of the training images, the update of the weights, and metrics.

    A subclass defines `update_architecture`. An epoch is one pass over the images for the weights.

    Args:
        config: the run. `config.model` is a name of `anynorm.lab.models.search` without an architecture; `config.optimizer`,
        `lr` and
            `schedule` are those of the weights.
        data: all images; None for those of `config.data`.

    Raises:
        SpecError: if a setting does not apply to a search.
        DataError: if the model is not a supernet, or the table does not fit it.
    """

    metric: ClassVar[Metric] = Metric("error", "%")
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn.none", "bn", "ccbn@K", "sabn@K"),
        batch_sizes=(32,),
        base=Config(
            model="nasbench201.n1",
            epochs=5,
            lr=0.025,
            width=0.5,
            schedule="cosine-to-0.04",
            nesterov=True,
            num_evals=5,
        ),
    )

    model: Supernet

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config, data)
        self._check_settings()
        self.images, self.alpha_images = split_images(self.images, config.seed, from_test=self.options.alpha_from_test)
        check_table(self.table, self.model)

    def _check_settings(self) -> None:
        config = self.config
        if config.grad_accum_steps != 1:
            raise SpecError(f"a search has one batch per update; grad_accum_steps must be 1, got {config.grad_accum_steps}.")

    def make_model(self) -> Supernet:
        """Return the untrained supernet with the norms of the run."""
        supernet = build_supernet(self.config.model, self.data.shape, self.config.width)
        set_supernet_norms(supernet, self.config)
        return supernet

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the expected accuracy on CIFAR-10 of architectures drawn from softmax(α) if there is a table, else `metric`."""
        has_table = bool(cls.options_of(config).table)
        return Metric(expected_accuracy_name("cifar10"), "%", higher_is_better=True) if has_table else cls.metric

    @cached_property
    def table(self) -> Any:
        """The `CellTable` of the run, or None."""
        return load_search_table(self.options.table)

    # Data ---------------------------------------------------------------------------------------------------------------------

    @cached_property
    def alpha_sampler(self) -> Sampler:
        """The sampler of the images on which α is trained."""
        config = replace(self.config, seed=self.config.seed + ALPHA_SEED)
        return Sampler(config, len(self.alpha_images), 1, self.processes.rank)

    def training_batch(self, step: int, micro_batch: int = WEIGHTS) -> Batch:
        """Return augmented images and labels for the update of the weights (pass 0) or of α (pass 1)."""
        images = self.alpha_images if micro_batch == ALPHA else self.images
        sampler = self.alpha_sampler if micro_batch == ALPHA else self.sampler
        x, labels = self.to_device(images.batch(sampler, step, 0))
        return self.augment(self.data.standardize(x), labels, sampler.generator(step))

    def draw(self, step: int, micro_batch: int) -> Draw:
        """Return the sampler of the operations that condition the norms in a pass; it draws the same ones in every call."""
        sampler = self.alpha_sampler if micro_batch == ALPHA else self.sampler
        return self._make_draw(sampler.dropout_seed(step))

    def _make_draw(self, seed: int) -> Draw:
        return MultinomialDraw(torch.Generator().manual_seed(seed)) if self.options.sample_conditions else first_operations

    # Training -----------------------------------------------------------------------------------------------------------------

    def weight_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the weights, with clipped gradients."""
        return clipping_optimizer(self.config, self.model.weight_parameters(), self.options.clip_grad_norm)

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Update the architecture, then the weights, or the other way round."""
        updates = [self.update_architecture, self.update_weights]
        metrics: Metrics = {}
        for update in reversed(updates) if self.options.weights_first else updates:
            metrics = {**metrics, **update(trainer)}
        return metrics

    def update_architecture(self, trainer: TrainingLoop) -> Metrics:
        """Update α or the policy that chooses architectures, and return metrics of the step."""
        raise NotImplementedError

    def update_weights(self, trainer: TrainingLoop) -> Metrics:
        """Update the weights by the loss of a batch, without gradients of α; inside `model.path`, only those of the path."""
        with frozen(self.model.alpha_parameters()), trainer.autocast():
            metrics = self.batch_loss(trainer.step, WEIGHTS)
        trainer.backward(metrics["loss"])
        trainer.update("weights")
        return metrics

    def batch_loss(self, step: int, micro_batch: int) -> Metrics:
        """Return loss and error of a micro-batch."""
        with self.model.set_condition_sampler(self.draw(step, micro_batch)):
            return self.loss(self.training_batch(step, micro_batch))

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return the error of the supernet with batch statistics, and metrics of its architecture."""
        with batch_statistics(self.model), self.model.set_condition_sampler(self._make_draw(EVALUATION_SEED)):
            metrics = super().evaluate()
        return {**metrics, **self.architecture_metrics()}

    def architecture_metrics(self) -> dict[str, float]:
        """Return the number of skip connections, the distance of α from uniform and, with a table, accuracies."""
        distances = [distance_from_uniform(self.model.probabilities(kind)) for kind in self.model.alphas]
        metrics = {
            "skips": float(self.model.architecture().count("skip_connect")),
            "alpha distance": sum(distances) / len(distances),
        }
        return metrics if self.table is None else {**metrics, **table_metrics(self.table, self.model.alphas["cell"])}

    def artifacts(self) -> dict[str, bytes]:
        """Return the architecture and softmax(α) as JSON."""
        probabilities = {kind: self.model.probabilities(kind).tolist() for kind in self.model.alphas}
        content = {"architecture": self.model.architecture(), "operations": self.model.op_names, "probabilities": probabilities}
        return {"architecture.json": json.dumps(content, indent=1).encode()}
