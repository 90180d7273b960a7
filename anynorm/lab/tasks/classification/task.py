"""Image classification: cross entropy on augmented images, error rate in percent on the test set.

With the option `attack`, the last evaluation also has the errors on adversarial images; see `robustness`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from typing_extensions import TypeVar

from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.tasks.classification.classifier import Classifier
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.tasks.classification.robustness import BATCH_SIZE, count_errors, count_images, pixel_model, to_pixels
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes

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

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the test set, after the last step also the errors on adversarial images."""
        return self.clean_metrics() | (self.robust_metrics() if self.attacks and self.is_trained else {})

    def robust_metrics(self) -> dict[str, float]:
        """Return the errors in percent on adversarial images, by attack; the first images of the test set are attacked."""
        count = count_images(self.options.num_attacked, self.images.num_tests)
        # norms that synchronize in train mode need as many passes in every process: each attacks all images
        processes = Processes() if self.config.sync else self.processes
        wrong = count_errors(pixel_model(self.model, self.data), self._attacked_batches(count, processes), self.attacks)
        sums = processes.sum([float(number) for number in wrong.values()])
        return {name: 100 * number / count for name, number in zip(wrong, sums, strict=True)}

    def _attacked_batches(self, count: int, processes: Processes) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the batches of this process: batch number, images in [0, 1] and labels."""
        for index, (x, labels) in enumerate(self._test_batches(BATCH_SIZE, processes)):
            batch = index * processes.count + processes.rank
            kept = count - batch * BATCH_SIZE
            if kept <= 0:
                return
            yield batch, to_pixels(x[:kept], self.data), labels[:kept]
