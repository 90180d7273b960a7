"""Tiny detectors with the signatures of torchvision, detectron2 and mmdetection."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.surgery.networks import FrozenBatchNorm2d


def pad(images):
    """Pad images to one size, a multiple of 8, and return them as one tensor."""
    height, width = (-(-max(image.shape[axis] for image in images) // 8) * 8 for axis in (1, 2))
    return torch.stack([F.pad(image.float(), (0, width - image.shape[2], 0, height - image.shape[1])) for image in images])


class TorchvisionDetector(nn.Module):
    """Takes a list of images; in train mode it needs targets."""

    def __init__(self, norm: Any = nn.BatchNorm2d):
        super().__init__()
        self.body = Bottleneck(3, norm)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, images, targets=None):
        if not isinstance(images, list):
            raise TypeError("expected a list of images")
        if self.training and targets is None:
            raise ValueError("targets should not be none when in training mode")
        scores = self.head(self.body(pad(images))).flatten(2).amax(2)
        return [{"scores": row} for row in scores]


class Bottleneck(nn.Module):
    """A stem and a residual block."""

    def __init__(self, inputs, norm: Any):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(inputs, 8, 3, 2, 1, bias=False), norm(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), norm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), norm(8)

    def forward(self, x):
        x = self.stem_norm(self.stem(x)).relu()
        return (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


def get_norm(norm, out_channels):
    """The signature of detectron2: a name or a callable."""
    if isinstance(norm, str):
        if not norm:
            return None
        norms: Any = {"BN": nn.BatchNorm2d, "SyncBN": nn.SyncBatchNorm, "FrozenBN": FrozenBatchNorm2d}
        norm = {**norms, "GN": lambda channels: nn.GroupNorm(4, channels)}[norm]
    return norm(out_channels)


class Conv2d(nn.Conv2d):
    """The class of detectron2: a convolution that applies its norm and activation."""

    def __init__(self, *args, norm=None, activation=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.norm, self.activation = norm, activation

    def forward(self, x):
        x = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        x = x if self.norm is None else self.norm(x)
        return x if self.activation is None else self.activation(x)


class BottleneckBlock(nn.Module):
    """A residual block of detectron2."""

    def __init__(self, channels, norm):
        super().__init__()
        self.conv1 = Conv2d(channels, channels, 3, padding=1, bias=False, norm=get_norm(norm, channels))
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False, norm=get_norm(norm, channels))

    def forward(self, x):
        return F.relu_(self.conv2(F.relu_(self.conv1(x))) + x)


class Detectron(nn.Module):
    """Takes a list of dictionaries, as detectron2's GeneralizedRCNN."""

    def __init__(self, norm: Any = "BN"):
        super().__init__()
        self.stem = Conv2d(3, 8, 3, stride=2, padding=1, bias=False, norm=get_norm(norm, 8), activation=F.relu_)
        self.block = BottleneckBlock(8, norm)
        self.fpn = Conv2d(8, 8, 1, bias=False, norm=get_norm(norm, 8))

    def forward(self, batched_inputs):
        if self.training:
            raise ValueError("needs instances in train mode")
        features = self.fpn(self.block(self.stem(pad([entry["image"] for entry in batched_inputs]))))
        return [{"instances": row} for row in features.mean((2, 3))]


NORM_LAYERS: Any = {"BN": ("bn", nn.BatchNorm2d), "SyncBN": ("bn", nn.SyncBatchNorm), "GN": ("gn", nn.GroupNorm)}


def build_norm_layer(cfg, num_features, postfix=""):
    """The signature of mmcv: the name of the layer in its parent, and the layer."""
    cfg = dict(cfg)
    abbreviation, norm = NORM_LAYERS[cfg.pop("type")]
    requires_grad = cfg.pop("requires_grad", True)
    layer = norm(num_channels=num_features, **cfg) if norm is nn.GroupNorm else norm(num_features, **cfg)
    for parameter in layer.parameters():
        parameter.requires_grad = requires_grad
    return f"{abbreviation}{postfix}", layer


class MMBlock(nn.Module):
    """A residual block of mmdetection: norms are added by name, and read through properties."""

    def __init__(self, channels, norm_cfg):
        super().__init__()
        self.norm1_name, norm1 = build_norm_layer(norm_cfg, channels, postfix=1)
        self.norm2_name, norm2 = build_norm_layer(norm_cfg, channels, postfix=2)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.add_module(self.norm1_name, norm1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.add_module(self.norm2_name, norm2)

    @property
    def norm1(self):
        return getattr(self, self.norm1_name)

    @property
    def norm2(self):
        return getattr(self, self.norm2_name)

    def forward(self, x):
        return (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


class MMDetector(nn.Module):
    """Takes (inputs, data_samples, mode), and has the test_step of mmengine, which preprocesses a batch."""

    def __init__(self, norm_cfg: Any = None, norm_eval=False):
        super().__init__()
        self.norm_eval = norm_eval
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.block = MMBlock(8, norm_cfg or {"type": "SyncBN", "requires_grad": True})

    def train(self, mode=True):
        super().train(mode)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def test_step(self, data):
        return self(pad(data["inputs"]) / 255, data["data_samples"], mode="predict")

    def forward(self, inputs, data_samples=None, mode="tensor"):
        features = self.block(self.stem(inputs)).mean((2, 3))
        return features if mode == "tensor" else list(zip(features, data_samples, strict=True))


def random_images(*sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(sizes))
    images = [torch.rand(3, *size, generator=generator) for size in sizes]
    return [image if dtype.is_floating_point else (255 * image).to(dtype) for image in images]


SIZES = [(12, 20), (16, 16), (9, 24)]
IMAGES = random_images(*SIZES)
BYTES = random_images(*SIZES, dtype=torch.uint8)
TARGETS = [{"boxes": torch.zeros(2, 4), "labels": torch.zeros(2)} for _ in SIZES]
BATCHED_INPUTS = [{"image": image, "height": 12, "width": 20} for image in IMAGES]
DATA = {"inputs": BYTES, "data_samples": ["sample 0", "sample 1", "sample 2"]}
