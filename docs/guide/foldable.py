"""The example of deployment.md: a network with GroupNorm becomes one whose norms fold, without labels.

    python foldable.py [--steps 120]

No public network for CIFAR-10 has GroupNorm, so the pretrained ResNet-20 of noisy.py gets `gn:8` and is trained on with it for
some steps. Then `convert(…, fit=)` and `recalibrate` replace its norms from images without labels, and `fold` removes them.
Accuracy is that of 1000 test images; times are minimum CPU times of one image on one thread, all candidates taken in turn.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import noisy
import onnxruntime
import torch
from torch import Tensor, nn

import anynorm
from anynorm.lab import load_dataset

NUM_FIT, NUM_RECALIBRATION, BATCH_SIZE = 512, 2048, 64
Call = Callable[[Tensor], Tensor]


def standardize(images: Tensor) -> Tensor:
    """Return uint8 images as the network expects them."""
    x: Tensor = (images.float() / 255 - noisy.MEAN) / noisy.STD
    return x


def group_norm_network(steps: int) -> nn.Module:
    """Return the pretrained ResNet-20 with `gn:8`, fitted, and then trained with labels for some steps."""
    images, labels = load_dataset("cifar10").train
    model: nn.Module = noisy.network().eval()
    anynorm.convert(model, "gn:8", fit=standardize(images[:NUM_FIT]))
    optimizer = torch.optim.SGD(model.train().parameters(), 0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=max(steps, 2))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH_SIZE,), generator=generator)
        top, left = torch.randint(9, (2,), generator=generator).tolist()
        x = nn.functional.pad(standardize(images[chosen]), (4, 4, 4, 4))[:, :, top : top + 32, left : left + 32]
        is_flipped = torch.rand(BATCH_SIZE, 1, 1, 1, generator=generator) < 0.5
        loss = nn.functional.cross_entropy(model(torch.where(is_flipped, x.flip(3), x)), labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return model.eval()


def versions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the network before, between and after the steps of the route."""
    images = standardize(load_dataset("cifar10").train[0][: NUM_FIT + NUM_RECALIBRATION])
    found = {"gn:8": model}
    for spec in ("bn", "hn:8"):
        for fit, name in ((None, f"{spec}, recalibrated"), (images[:NUM_FIT], f"{spec}, fitted and recalibrated")):
            found[name] = copy.deepcopy(model)
            anynorm.convert(found[name], spec, where="all", fit=fit)
            anynorm.recalibrate(found[name], torch.split(images[NUM_FIT:], 128))
        found[f"{spec}, folded"] = copy.deepcopy(found[f"{spec}, fitted and recalibrated"])
        anynorm.fold(found[f"{spec}, folded"], images[:1])
    return found


def eager(model: nn.Module, _x: Tensor, _folder: Path) -> Call:
    """Return the network."""
    return model


def onnx_runtime(model: nn.Module, x: Tensor, _folder: Path) -> Call:
    """Return a function that runs the network in ONNX Runtime, on one thread."""
    program: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def executorch(model: nn.Module, x: Tensor, folder: Path) -> Call:
    """Return a function that runs the network in ExecuTorch, with all supported operators delegated to XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    edge = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=[XnnpackPartitioner()])
    path = folder / "model.pte"
    path.write_bytes(edge.to_executorch().buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return lambda x: method.execute([x])[0]


RUNTIMES = {"eager": eager, "ONNX Runtime": onnx_runtime, "ExecuTorch": executorch}


def best_times(calls: dict[str, Call], x: Tensor, rounds: int = 100) -> dict[str, float]:
    """Return the minimum CPU time of each call in milliseconds; in each round, every call runs once."""
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = process_time()
            call(x)
            times[name] = min(times[name], 1000 * (process_time() - start))
    return times


@torch.no_grad()
def accuracy(call: Call, batch_size: int = noisy.BATCH_SIZE) -> float:
    """Return the percentage of test images that are classified correctly."""
    batches = [pair for x, y in noisy.day() for pair in zip(x.split(batch_size), y.split(batch_size), strict=True)]
    return 100 * torch.cat([call(x).argmax(1) == y for x, y in batches]).double().mean().item()


def main() -> None:
    """Print the accuracy of every version, and accuracy and time of the first and the folded ones in each runtime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="training steps with GroupNorm (default: 120)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    networks = versions(group_norm_network(steps))
    for name, model in networks.items():
        sys.stdout.write(f"{name:34} {accuracy(model):.1f} % correct\n")
    x = noisy.day()[0][0][:1]
    deployed = {name: model for name, model in networks.items() if name == "gn:8" or name.endswith("folded")}
    for runtime, make in RUNTIMES.items():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            calls: dict[str, Call] = {}
            for name, model in deployed.items():
                place = Path(folder) / str(len(calls))
                place.mkdir()
                try:
                    calls[name] = make(model, x, place)
                except ImportError as error:
                    sys.stdout.write(f"{runtime} is left out: {error}\n")
                    break
            for name, time in best_times(calls, x).items():
                correct = accuracy(calls[name], batch_size=1)
                sys.stdout.write(f"{runtime:14} {name:20} {correct:.1f} % correct, {time:.2f} ms\n")


if __name__ == "__main__":
    main()
