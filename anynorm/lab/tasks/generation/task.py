"""Class-conditional image generation: a generator and a projection discriminator with the hinge loss (sabn eq. 6).

    L_D = mean max(0, 1 − D(x, y)) + mean max(0, 1 + D(G(z, y'), y'))            n_dis updates per step
    L_G = −mean D(G(z, y'), y')                                                  then one

z ~ N(0, I), and y' is uniform over classes. Norms of the generator that take a class (`ccbn@K`, `sabn@K`, `hn.sa@K`, …) get y'.
Images are compared with the training images by the features of a network; see
`anynorm.lab.tasks.generation.metrics` and `anynorm.lab.tasks.generation.feature_networks`.
"""

from __future__ import annotations

import json
import warnings
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anynorm.errors import DataError, SpecError
from anynorm.lab.data import augment
from anynorm.lab.tasks.generation.class_gradients import Draw, measure_balance, spread_classes
from anynorm.lab.tasks.generation.feature_networks import distance_name, is_classifier_of, make_feature_network
from anynorm.lab.tasks.generation.metrics import compare_features
from anynorm.lab.tasks.generation.networks import build_gan
from anynorm.lab.tasks.generation.norms import set_generator_norms
from anynorm.lab.tasks.generation.options import GenerationOptions
from anynorm.lab.tasks.generation.reference_features import BATCH_SIZE, Features, extract_features, own_part, reference_features
from anynorm.lab.tasks.generation.sampling import (
    can_call,
    generate,
    generate_uint8,
    is_collapsed,
    recalibrated,
    sample_picture,
    split_batches,
    takes_classes,
)
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.images import Batch, load_images, make_images
from anynorm.lab.training.task import FUSED, Metric, Metrics, Optimizers, Task, TrainingLoop

RECALIBRATION_BATCH_SIZE = 32
EVALUATION_SEED = 1_000_003
"""Seed of the latent vectors of evaluations, the same for all runs."""


class Generation(Task[GenerationOptions]):
    """Class-conditional image generation by a GAN with a projection discriminator (Miyato & Koyama 2018).

    An epoch is one pass over the training images; a step uses `n_dis` batches.

    Args:
        config: the run, which trains with Adam. `config.norm` is the norm of the generator's blocks; its last norm is the same
            without classes. `config.model` is a name of `anynorm.lab.tasks.generation.networks.GANS` or `package.module:factory`.

    Raises:
        DataError: if the model does not fit the images.
        SpecError: if a norm does not have the number of classes of the data.
    """

    metric: ClassVar[Metric] = Metric("FD")
    version: ClassVar[int] = 2
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("ccbn@K", "sabn@K"),
        batch_sizes=(32,),
        lr_scaling="none",
        base=Config(
            model="sngan",
            epochs=20,
            lr=2e-4,
            width=0.25,
            weight_decay=0.0,
            schedule="constant",
            num_evals=5,
            options={"n_dis": 1},
        ),
    )

    generator: Any
    discriminator: Any

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.grad_accum_steps != 1:
            raise SpecError(
                f"generation takes n_dis batches per step; grad_accum_steps must be 1, got {config.grad_accum_steps}."
            )
        self.images = make_images(load_images(config), config)
        torch.manual_seed(config.seed)
        embeds, attends = self.options.shared_embedding, self.options.attention
        flags = [name for name, is_set in (("shared_embedding", embeds), ("attention", attends)) if is_set]
        self.generator, self.discriminator = build_gan(config.model, self.images.data.shape, config.width, flags)
        set_generator_norms(self.generator, config, self.num_classes, shared_embedding=embeds)
        self._picture: bytes | None = None
        self._class_distances: dict[int, float] = {}
        self._num_steps = 0

    # Data ---------------------------------------------------------------------------------------------------------------------

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the Fréchet distance, named after the network of its features."""
        return Metric(distance_name(cls.options_of(config).features))

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set and the feature network."""
        load_images(config)
        make_feature_network(config, cls.options_of(config).features)

    @property
    def num_classes(self) -> int:
        """The number of classes of the data set."""
        return int(self.images.data.num_classes)

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.images)

    @property
    def micro_batches_per_step(self) -> int:
        """The number of batches of real images per step."""
        return self.options.n_dis

    def training_batch(self, step: int, micro_batch: int = 0) -> Batch:
        """Return real images in [−1, 1] and their labels."""
        batch = self.images.batch(self.sampler, step, micro_batch, num_workers=self.num_workers)
        images, labels = self.to_device(batch)
        x = images.float() / 127.5 - 1
        if self.config.flip:
            x = augment.random_flip(x, self.sampler.generator(step, micro_batch))
        return x, labels

    # Training -----------------------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> Optimizers:
        """Return Adam for both networks."""
        betas = (self.options.beta1, self.options.beta2)
        return {
            name: torch.optim.Adam(
                network.parameters(), self.config.lr, betas, weight_decay=self.config.weight_decay, fused=FUSED
            )
            for name, network in (("generator", self.generator), ("discriminator", self.discriminator))
        }

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Update the discriminator n_dis times and the generator once."""
        if trainer.step == 0 and not takes_classes(self.generator):
            warnings.warn(
                f"no norm of the generator takes a class (norm {self.config.norm}), so it cannot tell classes apart. "
                "Usable: ccbn@K sabn@K.",
                stacklevel=2,
            )
        total = torch.zeros((), device=self.device)
        for micro_batch in range(self.micro_batches_per_step):
            images, labels = self.training_batch(trainer.step, micro_batch)
            random = self.sampler.generator(trainer.step, micro_batch)
            z, fake_labels = self.draw(len(images), random)
            with trainer.autocast():
                with torch.no_grad():
                    fakes = generate(self.generator, z, fake_labels)
                real_logits, fake_logits = self.discriminator(images, labels), self.discriminator(fakes, fake_labels)
                loss = (1 - real_logits).relu().mean() + (1 + fake_logits).relu().mean()
            trainer.backward(loss)
            trainer.update("discriminator")
            total = total + loss.detach()
        z, fake_labels = self.draw(self.options.generator_batch_size or self.config.batch_size, random)
        self.discriminator.requires_grad_(False)
        try:
            with trainer.autocast():
                generator_loss = self.generator_losses(self.generator, z, fake_labels).mean()
            trainer.backward(generator_loss)
        finally:
            self.discriminator.requires_grad_(True)
        trainer.update("generator")
        self._num_steps = trainer.step + 1
        metrics = {"discriminator_loss": total / self.micro_batches_per_step, "generator_loss": generator_loss}
        interval = self.options.balance_interval
        if interval and self._num_steps % interval == 0:
            metrics |= self.gradient_balance(random)
        return metrics

    def generator_losses(self, generator: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
        """Return −D(G(z, y), y) for each image of a batch; its mean is L_G."""
        losses: Tensor = -self.discriminator(generate(generator, z, labels), labels)
        return losses

    def gradient_balance(self, random: torch.Generator) -> dict[str, Tensor]:
        """Return the gradient balance of the generator for latent vectors from a random generator."""
        options, batch_size = self.options, self.config.batch_size
        num_compared = min(options.balance_batch_size or batch_size, batch_size)
        draws = [Draw(*self.draw(batch_size, random), num_compared) for _ in range(options.balance_draws)]
        classes = spread_classes(self.num_classes, options.balance_classes)
        return measure_balance(self.generator, self.discriminator, draws, classes, self.generator_losses)

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return latent vectors and labels, both random."""
        z = torch.randn(count, self.generator.latent_size, generator=random)
        labels = torch.randint(0, self.num_classes, (count,), generator=random)
        on_device: tuple[Tensor, Tensor] = self.to_device((z, labels))
        return on_device

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    @property
    def network(self) -> nn.Module:
        """The generator."""
        generator: nn.Module = self.generator
        return generator

    def evaluate(self) -> dict[str, float]:
        """Return distances and scores of generated images.

        Raises:
            DivergedError: if all images of each class are equal.
        """
        options = self.options
        fakes = self._fake_features()
        metrics, self._class_distances = compare_features(
            self.reference,
            fakes,
            options.features,
            score_splits=options.score_splits,
            intra_class=options.intra_class,
            has_classes=is_classifier_of(self.config.data, options.features, self.num_classes, fakes.logits),
        )
        return metrics

    @cached_property
    def reference(self) -> Features:
        """The features of training images that generated images are compared with."""
        return reference_features(self.config, self.options.features, self.options.num_reference, self.device)

    def _fake_features(self) -> Features:
        """Return the features of `num_generated` images, with equally frequent classes, divided among the processes."""
        count = self.options.num_generated
        labels = torch.arange(count) % self.num_classes
        random = torch.Generator().manual_seed(EVALUATION_SEED)
        z = torch.randn(count, self.generator.latent_size, generator=random)
        own = own_part(self.processes, count)
        images = self.sample(labels[own], z[own])
        if self.processes.all_true(is_collapsed(images, labels[own])):
            raise DivergedError(f"the generator has collapsed after step {self._num_steps}: all images of each class are equal")
        self._picture = sample_picture(images, labels[own], self.num_classes)
        network = make_feature_network(self.config, self.options.features).to(self.device)
        return extract_features(network, split_batches(images, labels[own], BATCH_SIZE)).gather(self.processes, count)

    def sample(self, labels: Tensor, z: Tensor | None = None) -> Tensor:
        """Generate images.

        Args:
            labels: the class of each image, (n,).
            z: latent vectors (n, latent_size); None for random ones from torch's global generator.

        Returns:
            uint8 images (n, c, h, w), on the CPU.

        Raises:
            DataError: if a label is not a class, or z has the wrong shape.
        """
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            raise DataError(
                f"labels must be in [0, {self.num_classes}); got values from {int(labels.min())} to {int(labels.max())}."
            )
        z = torch.randn(len(labels), self.generator.latent_size) if z is None else z
        if z.shape != (len(labels), self.generator.latent_size):
            raise DataError(f"z must be of shape {(len(labels), self.generator.latent_size)}; got {tuple(z.shape)}.")
        count, random = self.options.recalibration_batches, torch.Generator().manual_seed(EVALUATION_SEED + 1)
        generator = self.generator
        if count:
            generator = recalibrated(generator, [self.draw(RECALIBRATION_BATCH_SIZE, random) for _ in range(count)])
        return generate_uint8(generator, z, labels, self.device)

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture of samples, one row per class, and the distances within classes."""
        files = {}
        if self._picture is not None:
            files[f"samples/step-{self._num_steps:08d}.png"] = self._picture
        if self._class_distances:
            name = f"intra-class {distance_name(self.options.features)}"
            files["intra-class.json"] = json.dumps({name: self._class_distances}, indent=1).encode()
        return files

    def check(self) -> None:
        """Raise DataError if the generator's images do not have the shape of the data's, or the discriminator fails."""
        images, labels = self.training_batch(0)
        if not can_call(self.discriminator, images, labels):
            raise DataError(f"the discriminator of {self.config.model} must take images and labels: forward(images, labels).")
        z, _ = self.draw(len(images), self.sampler.generator(0, 0))
        with torch.no_grad():
            fakes = generate(self.generator, z, labels)
            logits = self.discriminator(images, labels)
        if fakes.shape != images.shape:
            raise DataError(
                f"the generator of {self.config.model} must return images of shape {tuple(images.shape)}; "
                f"got {tuple(fakes.shape)}."
            )
        if logits.shape != (len(images),):
            raise DataError(
                f"the discriminator of {self.config.model} must return one logit per image, ({len(images)},); "
                f"got {tuple(logits.shape)}."
            )
        _ = self.reference  # computed here with a progress bar, which the processes of runs do not have

    def close(self) -> None:
        """Stop the worker processes that decode streamed images."""
        self.images.close()
