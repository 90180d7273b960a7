"""Unsupervised domain adaptation: labeled images of a source, images without labels of a target, error rate on the target.

    source_only       train on the source, test on the target
    adabn             the same, with running statistics re-estimated on images of the target (Li et al. 2016)
    dsbn              domain-specific norms and pseudo labels; see `anynorm.lab.tasks.adaptation.loops`
    can               contrastive adaptation; see `anynorm.lab.tasks.adaptation.can`
    can_all_classes   the same with the loss of the authors' code

`config.data` is the source and the option `target` the target: data sets of `data`. Any norm can be used. A norm
with two domains (`bn.aux@2` with statistics and affine per domain, `gn:8.cc@2` with an affine per domain) is domain-specific:
domain 0 is the source and domain 1 the target. Other norms are shared by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import SpecError
from anynorm.lab.data.datasets import ImageDataset
from anynorm.lab.tasks.adaptation.data import DomainPair, load_pair_cached
from anynorm.lab.tasks.adaptation.options import AdaptationOptions
from anynorm.lab.tasks.classification.classifier import EVAL_BATCH_SIZE, Classifier
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import Batch, choose_samples
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.task import Metrics
from anynorm.layers.conditioning import condition, conditional_layers
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import calibration
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

SOURCE, TARGET = 0, 1
"""The domains of domain-specific norms."""
NUM_DOMAINS = 2
AdaptationOptions_co = TypeVar("AdaptationOptions_co", bound=AdaptationOptions, default=AdaptationOptions, covariant=True)


class SourceOnly(Classifier[AdaptationOptions_co]):
    """Image classification in a target domain after training in a source domain, without adaptation.

    It is the baseline of the methods of domain adaptation. Tests use the norms of the source.

    Args:
        config: the run. `num_train` is the number of training images of each domain, `num_test` that of the target.
        data: both domains; None for those of `config.data` and the option `target`.

    Attributes:
        target_images: the training images of the target, uint8 (n, c, h, w).

    Raises:
        DataError: if the domains are incompatible (`anynorm.lab.tasks.adaptation.data.make_pair`), or have too few images.
        SpecError: if a norm has classes, but not two domains.
    """

    has_validation: ClassVar[bool] = False  # held-out images of the source would say nothing about the target
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        batch_sizes=(32,),
        base=Config(model="small", epochs=10, lr=0.05),
    )

    def __init__(self, config: Config, data: DomainPair | None = None) -> None:
        pair = load_domains(type(self), config) if data is None else data
        super().__init__(config, ImageDataset(pair.source, pair.target_test, pair.num_classes, pair.mean, pair.std))
        chosen = choose_samples(config, len(pair.target))
        self.target_images = pair.target if chosen is None else pair.target[chosen]

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load both domains."""
        load_domains(cls, config)

    def apply_norms(self, network: nn.Module, num_classes: int | None = None) -> nn.Module:
        """Replace the norms of a network by those of the run; with `fit_images`, fit them on images of the source."""
        config, count = self.config, self.options.fit_images
        if count:
            images = self.data.standardize(self.data.train[0][:count])
            layout = Layout.parse(config.norm, config.batch_size, NUM_DOMAINS).without_classes()
            network = layout.apply(network, calibration(images, None))
        network = super().apply_norms(network, num_classes)
        for module in network.modules():
            if isinstance(module, Norm) and module.takes_condition and module.norm_spec.num_classes != NUM_DOMAINS:
                raise SpecError(
                    f"norms of a domain adaptation must have no classes or two domains, source and target; got {module.spec}. "
                    "Usable: bn bn.aux@2 gn:8.cc@2."
                )
        return network

    # Training on the source ---------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Metrics:
        """Return the mean cross entropy and the error in percent on images of the source."""
        with condition(self.model, SOURCE, strict=False):
            return super().loss(batch)

    # Evaluation on the target -------------------------------------------------------------------------------------------------

    @property
    def test_domain(self) -> int:
        """The domain whose norms are tested."""
        return SOURCE

    def evaluation(self) -> Evaluation:
        """Return the mean cross entropy and the error in percent on the test images of the target."""
        with condition(self.model, self.test_domain, strict=False):
            return super().evaluation()

    def evaluate_recalibrated(self) -> Evaluation:
        """Return the metrics with running statistics of the target's training images; the network is not changed."""
        if not has_running_stats(self.model):
            return SourceOnly.evaluation(self)
        with preserve_buffers(self.model), condition(self.model, self.test_domain, strict=False):
            recalibrate(self.model, self.target_batches())
            return SourceOnly.evaluation(self)

    def target_batches(self) -> Iterator[Tensor]:
        """Yield the standardized training images of the target, in order."""
        for images in torch.split(self.target_images, EVAL_BATCH_SIZE):
            yield self.data.standardize(self.to_device(images))

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        """Return test images of the target; None if the network needs a domain besides the images."""
        if conditional_layers(self.model):
            return None  # type: ignore[return-value]
        return super().eval_batches(batch_size)

    def check(self) -> None:
        """Raise DataError if the model fails on the images or does not return one logit per class."""
        with condition(self.model, SOURCE, strict=False):
            super().check()


class AdaBN(SourceOnly[AdaptationOptions]):
    """Unsupervised domain adaptation by running statistics of the target (AdaBN, Li et al. 2016).

    Norms without running statistics have nothing to estimate: their results are those of the task `source_only`.
    """

    def evaluation(self) -> Evaluation:
        """Return the metrics with running statistics of the target."""
        return self.evaluate_recalibrated()


def load_domains(task: type[SourceOnly], config: Config) -> DomainPair:
    """Return the source and the target of a run, loaded once per process."""
    target = task.options_of(config).target
    return load_pair_cached(config.data, target, config.image_size, config.source_hash, config.skip_unreadable)
