"""Accuracy of converted networks by method, network and number of images: the second table of docs/guide/surgery.md.

    python -m tests.surgery.conversions [--networks resnet20,…] [--seeds 3] [--methods fit,…]

Each cell (network, spec, method, seed of the choice of images) is appended to the record, docs/guide/accuracy.json, as soon as it
is measured; the command measures the cells that are missing, and can run in several processes. `make results` writes the table.

A method is one function in `METHODS`, a network one entry of `NETWORKS`. CIFAR-10, photographs and pretrained networks are read
from the shared data folder beside the project (`tests.real`); the vision transformer and ConvNeXt are trained here, on the digits
of scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from sklearn.datasets import load_digits
from torch import Tensor, nn

import anynorm
from anynorm.io.atomic import atomic_write
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.convnext import convnext
from anynorm.lab.models.vit import vit
from tests.real import load_cifar, load_natural_photos, pretrained_efficientnet, pretrained_resnet

RECORD = Path(__file__).parents[2] / "docs" / "guide" / "accuracy.json"
NUM_FIT = 512
FEATURE_MAPS = ("gn:8", "ln", "sn-bn", "in")
FOLDABLE = ("bn", "hn")  # these are folded before they are tested


@dataclass(frozen=True)
class Network:
    """A network whose norms are converted.

    Attributes:
        name: its name in the table.
        metric: what is measured in percent: "accuracy", or "agreement" with the original.
        specs: the specs of the new norms.
        num_images: the number of images without labels.
        load: returns the original.
        images: returns images to choose from.
        test: returns test images and labels; the labels are not used for agreement.
        steps: the budget of `distill`.
        batch_size: samples per step.
        num_fit: the number of images for `fit=`.
    """

    name: str
    metric: str
    specs: tuple[str, ...]
    num_images: int
    load: Callable[[], nn.Module]
    images: Callable[[], Tensor]
    test: Callable[[], tuple[Tensor, Tensor]]
    steps: int
    batch_size: int = 32
    num_fit: int = NUM_FIT


@cache
def natural_photos() -> tuple[Tensor, Tensor]:
    """Return photographs to choose from, and others for tests."""
    return load_natural_photos()


@cache
def _digits() -> tuple[Tensor, Tensor]:
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order].float().reshape(-1, 1, 8, 8) / 16, labels[order]


@cache
def _trained(build: Callable[..., nn.Module]) -> nn.Module:
    """Train a network of the lab on 1 400 digits."""
    torch.manual_seed(0)
    model = build(DataShape(1, 8, 8, 10))
    images, labels = (tensor[:1400] for tensor in _digits())
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(8):
        for batch in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


@cache
def _group_normed_resnet() -> nn.Module:
    """Return the pretrained ResNet-20 with gn:8 instead of BatchNorm, distilled; it is kept in the temporary directory."""
    path = Path(tempfile.gettempdir()) / "anynorm-resnet20-gn8.pt"
    original, images = pretrained_resnet(20), load_cifar("train")[0][:2000]
    model = copy.deepcopy(original)
    anynorm.convert(model, "gn:8", fit=images[:NUM_FIT])
    if not path.exists():
        anynorm.distill(model, original, images, steps=NETWORKS["ResNet-20"].steps)
        with atomic_write(path) as temporary:
            torch.save(model.state_dict(), temporary)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def _test_digits() -> tuple[Tensor, Tensor]:
    images, labels = _digits()
    return images[1400:], labels[1400:]


def _on_digits(name: str, build: Callable[..., nn.Module], specs: tuple[str, ...]) -> Network:
    return Network(
        name, "accuracy", specs, 1400, lambda: _trained(build), lambda: _digits()[0][:1400], _test_digits, 600, num_fit=512
    )


def _on_cifar(name: str, load: Callable[[], nn.Module], specs: tuple[str, ...], steps: int) -> Network:
    return Network(name, "accuracy", specs, 2000, load, lambda: load_cifar("train")[0], lambda: load_cifar("test"), steps)


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        _on_cifar("ResNet-20", lambda: pretrained_resnet(20), FEATURE_MAPS, 1600),
        _on_cifar("ResNet-20 with gn:8", _group_normed_resnet, ("hn", "bn"), 800),
        Network(
            "EfficientNet-lite0",
            "agreement",
            FEATURE_MAPS,
            1500,
            pretrained_efficientnet,
            lambda: natural_photos()[0],
            lambda: (natural_photos()[1], torch.zeros(0)),
            200,
            16,
            128,
        ),
        _on_cifar("ResNet-56", lambda: pretrained_resnet(56), FEATURE_MAPS, 800),
        _on_digits("ViT", vit, ("rms", "bn")),
        _on_digits("ConvNeXt", convnext, ("rms", "bn")),
    )
}
"""Networks by name, in the order in which they are measured."""


@dataclass
class Case:
    """One conversion: what a method gets.

    Attributes:
        network: the network.
        model: a copy of the original; the method changes it.
        original: the original.
        spec: the spec of the new norms.
        images: the chosen images.
    """

    network: Network
    model: nn.Module
    original: nn.Module
    spec: str
    images: Tensor

    def convert(self, fit: Tensor | None) -> None:
        """Convert the model."""
        self.model = anynorm.convert(self.model, self.spec, where="all", groups="nearest", fit=fit).model


def abrupt(case: Case) -> dict[str, Any]:
    """Convert without images; running statistics that a new norm lacks are estimated."""
    case.convert(None)
    if case.spec in FOLDABLE:
        anynorm.recalibrate(case.model, case.images[: case.network.num_fit].split(64))
    return {}


def fit(case: Case) -> dict[str, Any]:
    """Convert with `fit=`."""
    case.convert(case.images[: case.network.num_fit])
    return {}


def fit_and_distill(case: Case) -> dict[str, Any]:
    """Convert with `fit=`, then distill; the errors of the stages are those of the report."""
    fit(case)
    settings: Any = {"steps": case.network.steps, "batch_size": case.network.batch_size, "stage_share": 0.3, "lr": 1e-3}
    report = anynorm.distill(case.model, case.original, case.images, **settings)
    errors = {row["path"]: [round(row["error_before"], 4), round(row["error_after"], 4)] for row in report}
    return {**settings, "errors": errors}


METHODS: dict[str, Callable[[Case], dict[str, Any]]] = {"abrupt": abrupt, "fit": fit, "fit + distill": fit_and_distill}
"""Methods by name: functions that convert `case.model` and return further columns of the cell."""


@torch.no_grad()
def _predictions(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model.eval()(batch).argmax(1) for batch in images.split(100)])


def score(network: Network, model: nn.Module, original: nn.Module) -> float:
    """Return the accuracy, or the agreement with the original, in percent on the test images."""
    images, labels = network.test()
    expected = labels if network.metric == "accuracy" else _predictions(original, images)
    return round(100 * float((_predictions(model, images) == expected).float().mean()), 2)


def measure(network: Network, spec: str, method: str, seed: int) -> dict[str, Any]:
    """Measure one cell."""
    original, images = network.load(), network.images()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: network.num_images]
    case = Case(network, copy.deepcopy(original), original, spec, images[order])
    start, cpu = time.perf_counter(), time.process_time()
    columns = METHODS[method](case)
    times = {"minutes": (time.perf_counter() - start) / 60, "cpu_minutes": (time.process_time() - cpu) / 60}
    used = {"abrupt": 0, "fit": network.num_fit}.get(method, network.num_images)
    if spec in FOLDABLE:
        columns |= {"folded": anynorm.fold(case.model, case.images[:1]).finding}
    cell = {"network": network.name, "spec": spec, "method": method, "seed": seed}
    value = {network.metric: score(network, case.model, original), "images": used}
    return cell | value | {name: round(value, 3) for name, value in times.items()} | columns


def missing(cells: list[dict[str, Any]], networks: list[str], methods: list[str], seeds: int) -> Iterator[tuple[Any, ...]]:
    """Yield (network, spec, method, seed) of the cells that are not measured, seed by seed."""
    measured = {(cell["network"], cell["spec"], cell["method"], cell["seed"]) for cell in cells}
    for name in networks:
        for seed in range(seeds):
            for spec in NETWORKS[name].specs:
                for method in methods:
                    if (name, spec, method, seed) not in measured and (method != "abrupt" or seed == 0):
                        yield name, spec, method, seed


def update(results: dict[str, Any], record: Path = RECORD) -> None:
    """Add results to the record: to its lists and dictionaries, or as new entries."""
    with FileLock(Path(tempfile.gettempdir()) / f"anynorm-{record.name}.lock"):
        content = json.loads(record.read_text())
        conversions = content["conversions"]
        for name, value in results.items():
            old = conversions.get(name)
            conversions[name] = old + value if isinstance(old, list) else (old or {}) | value
        with atomic_write(record) as temporary:
            temporary.write_text(json.dumps(content, indent=1))


def latency(seconds: float = 20.0) -> dict[str, float]:
    """Return CPU times of ONNX Runtime in ms at batch size 1: the best of many, measured alternately."""
    import onnxruntime

    x, sessions = torch.randn(1, 3, 32, 32), {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    models = {name: pretrained_resnet(20) for name in ("bn, folded", "gn:8", "gn:8 → hn, folded")}
    for name in ("gn:8", "gn:8 → hn, folded"):
        anynorm.convert(models[name], "gn:8")
    anynorm.convert(models["gn:8 → hn, folded"], "hn", where="all", fit=torch.randn(64, 3, 32, 32))
    for name, model in models.items():
        if "folded" in name:
            anynorm.fold(model, x)
        program: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
        sessions[name] = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    best = dict.fromkeys(sessions, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, session in sessions.items():
            start = time.process_time()
            session.run(None, {session.get_inputs()[0].name: x.numpy()})
            best[name] = min(best[name], 1000 * (time.process_time() - start))
    return {name: round(value, 3) for name, value in best.items()}


def main() -> None:
    """Print one line per cell as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--latency", action="store_true", help="measure the latency in ONNX Runtime instead")
    arguments = parser.parse_args()
    if arguments.latency:
        update({"latency": latency()})
        return
    networks, methods = arguments.networks.split(","), arguments.methods.split(",")
    for name in networks:
        cells = json.loads(RECORD.read_text())["conversions"]["cells"]
        todo = list(missing(cells, [name], methods, arguments.seeds))
        network = NETWORKS[name]
        original = {name: score(network, network.load(), network.load())} if todo else {}
        for place in todo:
            cell = measure(network, *place[1:])
            update({"cells": [cell], "originals": original})
            sys.stdout.write(json.dumps(cell) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
