"""Arbitrary style transfer (Huang & Belongie 2017): a norm conditioned on a style, between a fixed encoder f and a decoder g.

    t = α norm(f(c), f(s)) + (1 − α) f(c)          image = g(t)

The decoder mirrors the encoder, with nearest upsampling in place of max pooling, padding by reflection, and without norms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.lab.tasks.style.networks.vgg import VGG, starts_block
from anynorm.layers.norm import Norm


def mirror(encoder: VGG) -> nn.Sequential:
    """Return a decoder with the convolutions of an encoder in reverse order, from its last features to images."""
    layers: list[nn.Module] = []
    for name in reversed(list(encoder.convolutions)):
        weight: Tensor = encoder.convolutions[name].get_parameter("weight")
        outputs, inputs = weight.shape[:2]
        layers += [nn.Conv2d(outputs, inputs, 3, padding=1, padding_mode="reflect"), nn.ReLU()]
        if starts_block(name):
            layers.append(nn.Upsample(scale_factor=2))
    return nn.Sequential(*layers[:-1])


class StyleTransferNetwork(nn.Module):
    """The trained part of style transfer: the norm and the decoder.

    Args:
        norm: a norm that takes a style.
        decoder: a network from features to images.
    """

    def __init__(self, norm: Norm, decoder: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.decoder = decoder

    def target(self, content: Tensor, style: Tensor, alpha: float = 1.0) -> Tensor:
        """Return the features of the stylized image.

        Args:
            content: features (n, c, h, w).
            style: features (n or 1, c, …) of any height and width.
            alpha: the weight of the style, from 0 (the features of the content) to 1.
        """
        target = self.norm(content, style)
        return target if alpha == 1 else torch.lerp(content, target, alpha)

    def forward(self, content: Tensor, style: Tensor, alpha: float = 1.0) -> Tensor:
        """Return stylized images, given the features of content and style; arguments as in `target`."""
        image: Tensor = self.decoder(self.target(content, style, alpha))
        return image
