"""Arbitrary style transfer: a decoder that renders any content in any style (Huang & Belongie 2017; sabn sec. 5.2).

    t = norm(f(c), f(s))        image = g(t)        loss = MSE(f(g(t)), t) + style_weight · style(f(g(t)), f(s))

f is a fixed encoder (`encoders`), g its mirrored decoder, and the norm is that of the run: adain, saadain,
ilmadain, or any norm with `.style` or `.sastyle`. The target t of the content loss is the output of the norm, which a norm with
parameters can change: with `detach_target=False`, as in the release of sabn, the content loss also trains the norm to move the
target towards f(g(t)). Then the content losses of two norms have different targets and cannot be compared. So the evaluation
has two more metrics, which are comparable between norms:

    adain_content_loss        MSE(f(g(t)), AdaIN(f(c), f(s)))          against the target of AdaIN
    normalized_content_loss   MSE(IN(f(g(t))), IN(f(c)))               without any style
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import instance_norm

from anynorm.errors import DataError, SpecError
from anynorm.io.pictures import encode_png
from anynorm.lab.tasks.style.crops import Crops, channels_last
from anynorm.lab.tasks.style.encoders import load_vgg
from anynorm.lab.tasks.style.losses import mean_losses, moment_loss, squared_error
from anynorm.lab.tasks.style.networks.decoder import StyleTransferNetwork, mirror
from anynorm.lab.tasks.style.networks.vgg import VGG
from anynorm.lab.tasks.style.options import StyleTransferOptions
from anynorm.lab.tasks.style.pictures import NUM_PICTURES, draw_styles
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.sampler import Sampler
from anynorm.lab.training.task import Metric, Metrics, Task
from anynorm.registry import make, parse

EVAL_BATCH_SIZE = 16


class StyleTransfer(Task[StyleTransferOptions]):
    """Style transfer with any style, by one decoder (AdaIN, Huang & Belongie 2017).

    `config.data` has the content images, see `anynorm.lab.data.unlabeled`, and `config.image_size` is the side of a random crop.

    Args:
        config: the run.

    Raises:
        SpecError: if the norm does not take a style.
        DataError: if the weights of the encoder are not found.
    """

    metric: ClassVar[Metric] = Metric("loss")
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("adain", "saadain", "ilmadain"),
        batch_sizes=(8,),
        lr_scaling="none",
        base=Config(model="resnet10", epochs=4, lr=1e-3, optimizer="adam", weight_decay=0.0, image_size=256),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not parse(config.norm, batch_size=config.batch_size).takes_style:
            raise SpecError(
                f"style_transfer needs a norm that takes a style; got {config.norm}. Usable: adain, saadain, ilmadain, and any "
                "norm with the suffix .style or .sastyle, such as gn:32.style."
            )
        encoder = load_vgg(self.options.encoder, self.options.content_layer)
        torch.manual_seed(config.seed)
        norm = make(config.norm, encoder.num_features, batch_size=config.batch_size)
        self.model = channels_last(StyleTransferNetwork(norm, mirror(encoder)))
        self.encoder = channels_last(encoder)
        self.style_layers = check_layers(self.options.style_layers, self.encoder)

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Find the images and the weights of the encoder."""
        task = cls(config)
        _ = task.contents, task.styles

    @cached_property
    def contents(self) -> Crops:
        """The content images."""
        return Crops(self.config.data, self.config, self.options.resize)

    @cached_property
    def styles(self) -> Crops:
        """The style images, one at random per content image."""
        name = self.options.styles
        if not name:
            raise DataError("style_transfer needs style images: set the option styles to folder:PATH or npz:PATH; got ''.")

        def choose(sampler: Sampler, step: int, micro_batch: int) -> Tensor:
            generator = sampler.generator(step, micro_batch)
            return torch.randint(len(self.styles.train), (self.config.batch_size,), generator=generator)

        return Crops(name, self.config, self.options.resize, stream=1, choose=choose)

    @property
    def num_samples(self) -> int:
        """The number of content images."""
        return len(self.contents.train)

    def training_batch(self, step: int, micro_batch: int = 0) -> tuple[Tensor, Tensor]:
        """Return contents and styles of one micro-batch of a step."""
        sources, workers = (self.contents, self.styles), (self.num_workers + 1) // 2
        content, style = (crops.batch(self.sampler, step, micro_batch, num_workers=workers) for crops in sources)
        return self.to_device(content), self.to_device(style)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Metrics:
        """Return the content loss, the style loss and their weighted sum."""
        content, style = batch
        with torch.no_grad():
            content_features = self.encode(content)
            style_features = self.encoder(style, {*self.style_layers, self.options.content_layer})
        return {name: values.mean() for name, values in self._losses(content_features, style_features)[0].items()}

    def _losses(self, content: Tensor, style: dict[str, Tensor]) -> tuple[Metrics, Tensor]:
        """Return the losses of each sample, and the features of the stylized images."""
        last = self.options.content_layer
        target = self.model.target(content, style[last])
        features = self.encoder(self.model.decoder(target), {*self.style_layers, last})
        content_loss = squared_error(features[last], target.detach() if self.options.detach_target else target)
        style_loss = moment_loss(features, {name: style[name] for name in self.style_layers})
        loss = content_loss + self.options.style_weight * style_loss
        return {"loss": loss, "content_loss": content_loss, "style_loss": style_loss}, features[last]

    def encode(self, images: Tensor) -> Tensor:
        """Return the features to which the style is applied."""
        features: Tensor = self.encoder(images)[self.options.content_layer]
        return features

    def evaluate(self) -> dict[str, float]:
        """Return the losses on central crops of test images: content i with the styles i, i + 1, … of `styles_per_content`.

        The items are the contents, each with the mean over its styles: two pairs of one content are not independent.
        """
        count, last = len(self.contents.test), self.options.content_layer
        sums: dict[str, Tensor] = {}
        for start in range(0, count, EVAL_BATCH_SIZE):
            stop = min(start + EVAL_BATCH_SIZE, count)
            content = self.encode(self.to_device(self.contents.test_crops(range(start, stop))))
            for shift in range(self.options.styles_per_content):
                style_images = self.to_device(self.styles.test_crops(range(start + shift, stop + shift)))
                style = self.encoder(style_images, {*self.style_layers, last})
                metrics, features = self._losses(content, style)
                adain = make("adain", content.shape[1])(content, style[last])
                metrics["adain_content_loss"] = squared_error(features, adain)
                metrics["normalized_content_loss"] = squared_error(instance_norm(features), instance_norm(content))
                for name, values in metrics.items():
                    total = sums.setdefault(name, torch.zeros(count, dtype=torch.float64))
                    total[start:stop] += values.cpu()
        return self.keep_items(mean_losses({name: total / self.options.styles_per_content for name, total in sums.items()}))

    def stylize(self, content: Tensor, style: Tensor | None, alpha: float = 1.0) -> Tensor:
        """Return contents in a style.

        Args:
            content: images (n, 3, h, w) in [0, 1], of any size.
            style: images (n or 1, 3, h, w) in [0, 1], of any size.
            alpha: the weight of the style, in [0, 1].

        Returns:
            Images of the size of `content`; values may lie outside of [0, 1].
        """
        if style is None:
            raise DataError("a run of style_transfer needs a style image; got none.")
        check_alpha(alpha)
        height, width = content.shape[2:]
        image: Tensor = self.model(self.encode(content), self.encode(style), alpha)
        return image[..., :height, :width]  # max pooling rounds sizes up

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture: test images as rows, styles as columns."""
        contents, styles = (
            self.to_device(crops.test_crops(range(min(NUM_PICTURES, len(crops.test))))) for crops in (self.contents, self.styles)
        )
        return {"stylized.png": encode_png(draw_styles(self.stylize, contents, styles))}

    def close(self) -> None:
        """Stop the worker processes."""
        for name in ("contents", "styles"):
            if name in self.__dict__:
                getattr(self, name).close()


def check_alpha(alpha: float) -> None:
    """Raise DataError if α is not in [0, 1]."""
    if not 0 <= alpha <= 1:
        raise DataError(f"alpha must be in [0, 1]; got {alpha}.")


def check_layers(names: Sequence[str], encoder: VGG) -> list[str]:
    """Return the names of layers of an encoder.

    Raises:
        DataError: if the encoder does not have one of them.
    """
    known = list(encoder.convolutions)
    for name in names:
        if name not in known:
            raise DataError(f"style_layers must be layers of the encoder, {' '.join(known)}; got {name!r}.")
    return list(names)
