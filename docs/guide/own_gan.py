"""The example of generation.md: a class-conditional GAN for 8 × 8 digits, the adapter of its norm, and a feature network."""

from torch import Tensor, nn

from anynorm import read_norm, register
from anynorm.lab import DataShape


class ConditionalBatchNorm2d(nn.Module):
    """BatchNorm, then a scale and a shift per class."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, affine=False)
        self.gain, self.bias = nn.Embedding(num_classes, channels), nn.Embedding(num_classes, channels)
        nn.init.normal_(self.gain.weight, 1, 0.02)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return gain · normalized x + bias."""
        gain, bias = self.gain(labels)[:, :, None, None], self.bias(labels)[:, :, None, None]
        y: Tensor = gain * self.bn(x) + bias
        return y


class Generator(nn.Module):
    """A linear layer and two convolutions, with conditional norms."""

    latent_size = 16

    def __init__(self, num_classes: int, channels: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(self.latent_size, channels * 4 * 4)
        self.norm1, self.conv1 = ConditionalBatchNorm2d(channels, num_classes), nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2, self.conv2 = ConditionalBatchNorm2d(channels, num_classes), nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return images in [−1, 1]."""
        x = self.linear(z).unflatten(1, (-1, 4, 4))
        x = self.conv1(nn.functional.interpolate(self.norm1(x, labels).relu(), scale_factor=2))
        images: Tensor = self.conv2(self.norm2(x, labels).relu())
        return images.tanh()


class Discriminator(nn.Module):
    """Two convolutions and the projection of the class."""

    def __init__(self, num_classes: int, channels: int = 16) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, channels, 4, 2, 1), nn.Conv2d(channels, channels, 4, 2, 1)
        self.linear, self.embedding = nn.Linear(channels, 1), nn.Embedding(num_classes, channels)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return one logit per image."""
        h = self.conv2(self.conv1(images).relu()).relu().sum((2, 3))
        logits: Tensor = self.linear(h).squeeze(1) + (self.embedding(labels) * h).sum(1)
        return logits


register("ConditionalBatchNorm2d", lambda module: read_norm(module.bn).with_class_affine(module.gain.weight, module.bias.weight))


def make_gan(shape: DataShape) -> tuple[nn.Module, nn.Module]:
    """Return both networks."""
    return Generator(shape.num_classes), Discriminator(shape.num_classes)


class Pixels(nn.Module):
    """Averages of 2 × 2 pixels."""

    label = "pixels"

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, d) of uint8 images."""
        return nn.functional.avg_pool2d(images.float() / 255, 2).flatten(1)
