"""Style transfer by a network for a single style (Johnson et al. 2016; sn appendix F).

    loss = content_weight · MSE(f(ŷ), f(x)) + style_weight · Σ ‖G(f_l(ŷ)) − G(f_l(s))‖²_F + tv_weight · TV(ŷ),    ŷ = network(x)

f are features of a fixed VGG network, G their Gram matrices. The norms of the network are those of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError, ShapeError
from anynorm.io.pictures import encode_png
from anynorm.lab.data.image_sources import read_image
from anynorm.lab.data.transforms import CenterCrop
from anynorm.lab.data.unlabeled import find_image
from anynorm.lab.tasks.style.crops import Crops, channels_last, to_float
from anynorm.lab.tasks.style.encoders import load_vgg
from anynorm.lab.tasks.style.losses import gram, gram_loss, mean_losses, squared_error, total_variation
from anynorm.lab.tasks.style.networks.johnson import JohnsonNetwork
from anynorm.lab.tasks.style.options import SingleStyleOptions
from anynorm.lab.tasks.style.pictures import NUM_PICTURES, draw_single_style
from anynorm.lab.tasks.style.task import EVAL_BATCH_SIZE, check_alpha, check_layers
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.task import Metric, Metrics, Task


class SingleStyleTransfer(Task[SingleStyleOptions]):
    """Style transfer with a single style, by a network that is trained for it (Johnson et al. 2016).

    `config.data` has the content images, see `anynorm.lab.data.unlabeled`; `config.image_size` is the side of a random crop, and
    `config.width` multiplies the channels of the network.

    Args:
        config: the run.

    Raises:
        DataError: if the weights of the encoder are not found.
    """

    metric: ClassVar[Metric] = Metric("loss")
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "in", "sn"),
        batch_sizes=(4,),
        lr_scaling="none",
        base=Config(model="resnet10", epochs=2, lr=1e-3, optimizer="adam", weight_decay=0.0, image_size=256),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        options = self.options
        encoder = load_vgg(options.encoder, max(options.content_layer, *options.style_layers))
        torch.manual_seed(config.seed)
        network = JohnsonNetwork(1.0 if config.width is None else config.width)
        network.scale_last_layer(options.last_layer_scale)
        model = self.apply_norms(network)
        self.model = channels_last(model)
        self.encoder = channels_last(encoder)
        self.style_layers = check_layers(options.style_layers, self.encoder)

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Find the images and the weights of the encoder."""
        task = cls(config)
        _ = task.contents, task.style

    @cached_property
    def contents(self) -> Crops:
        """The content images."""
        return Crops(self.config.data, self.config, self.options.resize)

    @cached_property
    def style(self) -> Tensor:
        """The style image, (1, 3, h, w) in [0, 1]."""
        from PIL import Image

        if not self.options.style_image:
            raise DataError("single_style_transfer needs a style: set the option style_image to the path of an image; got ''.")
        size = self.options.style_size or self.config.image_size
        pixels = read_image(find_image(self.options.style_image)).permute(1, 2, 0).numpy()
        square = CenterCrop(size, size)(Image.fromarray(pixels), np.random.default_rng(0))
        return to_float(torch.from_numpy(square)[None])

    @cached_property
    def grams(self) -> dict[str, Tensor]:
        """The Gram matrices of the style image by layer."""
        with torch.no_grad():
            features = self.encoder(self.to_device(self.style), self.style_layers)
            return {name: gram(features[name]) for name in self.style_layers}

    @property
    def num_samples(self) -> int:
        """The number of content images."""
        return len(self.contents.train)

    def training_batch(self, step: int, micro_batch: int = 0) -> Tensor:
        """Return the images of one micro-batch of a step."""
        images = self.contents.batch(self.sampler, step, micro_batch, num_workers=self.num_workers)
        return cast("Tensor", self.to_device(images))

    def loss(self, batch: Tensor) -> Metrics:
        """Return the content loss, the style loss, the total variation and their weighted sum."""
        return {name: values.mean() for name, values in self.sample_losses(batch).items()}

    def sample_losses(self, batch: Tensor) -> Metrics:
        """Return the losses of each image."""
        options, layer = self.options, self.options.content_layer
        with torch.no_grad():
            content = self.encoder(batch, [layer])[layer]
        images = self.model(batch)
        features = self.encoder(images, {*self.style_layers, layer})
        content_loss = squared_error(features[layer], content)
        style_loss = gram_loss(features, self.grams)
        tv_loss = total_variation(images)
        loss = options.content_weight * content_loss + options.style_weight * style_loss + options.tv_weight * tv_loss
        return {"loss": loss, "content_loss": content_loss, "style_loss": style_loss, "tv_loss": tv_loss}

    def evaluate(self) -> dict[str, float]:
        """Return the losses on central crops of the test images."""
        losses = [self.sample_losses(self.to_device(batch)) for batch in self.contents.test_batches(EVAL_BATCH_SIZE)]
        return self.keep_items(mean_losses({name: torch.cat([each[name] for each in losses]) for name in losses[0]}))

    def eval_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Return central crops of the test images, for diagnostics."""
        return map(self.to_device, self.contents.test_batches(batch_size))

    def stylize(self, content: Tensor, style: Tensor | None = None, alpha: float = 1.0) -> Tensor:
        """Return images in the style of the run.

        Args:
            content: images (n, 3, h, w) in [0, 1], of any size.
            style: must be None: the network has one style.
            alpha: the weight of the stylized image, in [0, 1]; the rest is the content.
        """
        if style is not None:
            raise DataError("a run of single_style_transfer has a style of its own; got a style image. Leave it out.")
        check_alpha(alpha)
        if min(content.shape[2:]) < JohnsonNetwork.min_size:
            size, (height, width) = JohnsonNetwork.min_size, content.shape[2:]
            raise ShapeError(f"images must have at least {size} × {size} pixels for this network; got {height} × {width}.")
        return torch.lerp(content, self.model(content), alpha)

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture: test images in the first row, and their stylized images below."""
        contents = self.to_device(self.contents.test_crops(range(min(NUM_PICTURES, len(self.contents.test)))))
        return {"stylized.png": encode_png(draw_single_style(self.stylize, contents))}

    def close(self) -> None:
        """Stop the worker processes."""
        if "contents" in self.__dict__:
            self.contents.close()
