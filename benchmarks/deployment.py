"""Time inference of a ResNet-20 before and after `fold`, and with a norm that cannot be folded, in several runtimes.

    ANYNORM_DATA=… python benchmarks/deployment.py [--minutes 2] [--batch-sizes 1] [--json out.json]

The runtimes are eager torch, torch.compile, AOTInductor, ONNX Runtime, and, if it is installed, ExecuTorch with XNNPACK. All of
them are timed alternately on one thread; the result is the minimum CPU time of each. Only ratios within one run are meaningful.
If $ANYNORM_DATA has CIFAR-10 and the weights, the accuracy in int8 is measured too (docs/guide/quantize.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from time import process_time
from typing import Any

import onnxruntime
import torch
from measurement import best_times, write_results
from sections import deployment_section
from torch import Tensor, nn

import anynorm
from anynorm.lab.models.cifar_resnet import CifarResNet
from anynorm.progress import track

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
BASE = "nn.BatchNorm2d"
VARIANTS = (BASE, "folded", "gn:8")
PACKAGES = ("torch", "onnxruntime", "executorch", "torchao")
Call = Callable[[], object]


def network(variant: str) -> nn.Module:
    """Build a ResNet-20 with random weights, and running statistics from one batch of random images; `variant` of `VARIANTS`."""
    torch.manual_seed(0)
    model = CifarResNet(20, norm=nn.BatchNorm2d)
    model(torch.randn(64, 3, 32, 32))
    if variant == "gn:8":
        anynorm.convert(model, variant)
    elif variant == "folded":
        anynorm.fold(model.eval(), torch.randn(1, 3, 32, 32))
    return model.eval()


def eager(model: nn.Module, x: Tensor, _: Path) -> Call:
    """Return a function that runs a forward pass in eager mode."""
    return lambda: model(x)


def compiled(model: nn.Module, x: Tensor, _: Path) -> Call:
    """Return a function that runs a forward pass under torch.compile; earlier compiled models are discarded."""
    torch.compiler.reset()
    function = torch.compile(model, fullgraph=True)
    function(x)
    return lambda: function(x)


def aot_inductor(model: nn.Module, x: Tensor, folder: Path) -> Call:
    """Return a function that runs a forward pass of the library that AOTInductor compiles ahead of time."""
    program = torch.export.export(model, (x,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    runner = torch._inductor.aoti_load_package(path)
    return lambda: runner(x)


def onnx_runtime(model: nn.Module, x: Tensor, _: Path) -> Call:
    """Return a function that runs a forward pass in ONNX Runtime."""
    program: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    inputs = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, inputs)


def executorch(model: nn.Module, x: Tensor, folder: Path) -> Call:
    """Return a function that runs a forward pass in ExecuTorch, with all supported operators delegated to XNNPACK.

    Raises:
        ImportError: if ExecuTorch is not installed.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    edge = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=[XnnpackPartitioner()])
    path = folder / "model.pte"
    path.write_bytes(edge.to_executorch().buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return lambda: method.execute([x])


RUNTIMES: dict[str, Callable[[nn.Module, Tensor, Path], Call]] = {
    "eager": eager,
    "torch.compile": compiled,
    "AOTInductor": aot_inductor,
    "ONNX Runtime": onnx_runtime,
    "ExecuTorch": executorch,
}


def prepare(models: dict[str, nn.Module], x: Tensor, folder: Path) -> Iterator[tuple[tuple[str, str], Call]]:
    """Yield ((runtime, variant), call) for each installed runtime and each model that it can run, after checking the output."""
    for runtime, make in RUNTIMES.items():
        for variant, model in models.items():
            place = folder / f"{runtime}-{variant}-{len(x)}".replace(":", "")
            place.mkdir()
            try:
                call = make(model, x, place)
                output: Any = call()
            except ImportError as error:
                sys.stdout.write(f"{runtime} is left out: {error}\n")
                break
            except Exception as error:  # each exporter raises its own exceptions
                sys.stdout.write(f"{runtime} cannot run {variant}: {error}\n")
                continue
            output = output[0] if isinstance(output, list) else output
            torch.testing.assert_close(torch.as_tensor(output), model(x), rtol=1e-3, atol=1e-4)
            yield (runtime, variant), call


def measure(batch_size: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Time all runtimes and variants alternately at one batch size."""
    x = torch.randn(batch_size, 3, 32, 32)
    calls = dict(prepare({variant: network(variant) for variant in VARIANTS}, x, folder))
    times = best_times({"/".join(key): call for key, call in calls.items()}, seconds, clock=process_time)
    rows: dict[str, dict[str, float]] = {}
    for runtime, variant in calls:
        rows.setdefault(runtime, {})[variant] = times[f"{runtime}/{variant}"]
    return {"batch_size": batch_size, "seconds": rows}


def measure_quantization() -> dict[str, Any]:
    """Return accuracies in float32 and int8; an empty dictionary without the data or torchao."""
    if "ANYNORM_DATA" not in os.environ:
        return {}
    sys.path.insert(0, str(GUIDE))
    try:
        import quantize
    except ImportError as error:
        sys.stdout.write(f"int8 is left out: {error}\n")
        return {}
    return {"num_images": 2000, "rows": quantize.measure(2000)}


def versions() -> dict[str, str]:
    """Return the versions of the installed packages of `PACKAGES`."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="time for measuring, after compilation (default: 2)")
    parser.add_argument("--batch-sizes", default="1", help="comma-separated batch sizes (default: 1)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # warnings of the exporters
    sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        seconds = arguments.minutes * 60 / len(sizes)
        rows = [measure(size, seconds, Path(name)) for size in track(sizes, "timing runtimes")]
    results = {"base": BASE, "variants": VARIANTS, "versions": versions(), "rows": rows, "quantization": measure_quantization()}
    print(deployment_section(results))
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
