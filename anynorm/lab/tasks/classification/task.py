"""Image classification: cross entropy on augmented images, error rate in percent on the test set.

With the option `attack`, the last evaluation also has the errors on adversarial images; see `robustness`. With the option
`averaged_samples`, every evaluation also has the metrics with batch averages in the place of moving averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from torch import Tensor
from typing_extensions import TypeVar

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.tasks.classification import one_pass
from anynorm.lab.tasks.classification.classifier import Classifier
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.tasks.classification.robustness import BATCH_SIZE, count_images, find_hits, pixel_model, to_pixels
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import scalar
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.task import Metrics, TrainingLoop
from anynorm.layers.micro_batches import micro_batches
from anynorm.layers.norm import Norm
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

BATCH_AVERAGE = "batch average"
"""Metrics "NAME, batch average" are those with averages of the statistics of training batches."""

ClassificationOptions_co = TypeVar(
    "ClassificationOptions_co", bound=ClassificationOptions, default=ClassificationOptions, covariant=True
)


class Classification(Classifier[ClassificationOptions_co]):
    """Image classification.

    Args:
        config: the run.
        data: all images; None for those of `config.data`.
    """

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config, data)
        self.attacks = self.options.make_attacks()

    @cached_property
    def is_one_pass(self) -> bool:
        """Whether one pass computes all micro-batches of a step; False for subclasses, which may define another step."""
        is_own = type(self) is Classification
        return one_pass.ENABLED and is_own and one_pass.is_supported(self.config, self.model, self.data.shape)

    @property
    def samples_per_pass(self) -> int:
        """The number of samples per forward pass in training."""
        return self.config.batch_size * (self.micro_batches_per_step if self.is_one_pass else 1)

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Update the parameters once and return the metrics of the step."""
        if not self.is_one_pass:
            return super().training_step(trainer)
        norms = [module for module in self.model.modules() if isinstance(module, Norm)]
        with trainer.autocast(), micro_batches(norms, self.config.batch_size):
            metrics = self.loss(self.step_batch(trainer.step))
        trainer.backward(metrics["loss"])
        trainer.update()
        return {name: scalar(name, value) for name, value in metrics.items()}

    def evaluation(self) -> Evaluation:
        """Return the metrics of the test set, after the last step also the errors on adversarial images."""
        num_samples = self.options.averaged_samples
        evaluation = self.evaluate_averaged(num_samples) if num_samples else Evaluation()
        evaluation |= self.evaluate_clean()
        return evaluation | self.evaluate_robust() if self.attacks and self.is_trained else evaluation

    def evaluate_averaged(self, num_samples: int) -> Evaluation:
        """Return the metrics "NAME, batch average"; none for a network without running statistics, which is not changed.

        Args:
            num_samples: number of training images, divided into batches as in training; more than there are for later epochs.
        """
        if not has_running_stats(self.model):
            return Evaluation()
        with preserve_buffers(self.model):
            recalibrate(self.model, self._training_batches(num_samples), estimator="averaged_biased")
            return self.evaluate_clean().with_suffix(f", {BATCH_AVERAGE}")

    def _training_batches(self, num_samples: int) -> Iterator[Tensor]:
        """Yield augmented training images in batches of the size of training, from the first epoch on."""
        for index in range(-(-num_samples // (self.config.batch_size * self.processes.count))):
            yield self.training_batch(*divmod(index, self.sampler.micro_batches_per_step))[0]

    def evaluate_robust(self) -> Evaluation:
        """Return the errors in percent on adversarial images, by attack; the first images of the test set are attacked."""
        count = count_images(self.options.num_attacked, self.images.num_tests)
        # norms that synchronize in train mode need as many passes in every process: each attacks all images
        processes = Processes() if self.config.sync else self.processes
        hits = find_hits(pixel_model(self.model, self.data), self._attacked_batches(count, processes), self.attacks)
        sums = processes.sum([float(each.count(False)) for each in hits.values()])
        metrics = {name: 100 * number / count for name, number in zip(hits, sums, strict=True)}
        return Evaluation(metrics, {**hits} if processes.count == 1 else {})

    def _attacked_batches(self, count: int, processes: Processes) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the batches of this process: batch number, images in [0, 1] and labels."""
        for index, (x, labels) in enumerate(self._test_batches(BATCH_SIZE, processes)):
            batch = index * processes.count + processes.rank
            kept = count - batch * BATCH_SIZE
            if kept <= 0:
                return
            yield batch, to_pixels(x[:kept], self.data), labels[:kept]
