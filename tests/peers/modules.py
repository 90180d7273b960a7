"""The cases of torch's ModuleInfo database for norms, with torch's layers and with ours; prints one JSON line per check.

python -m tests.peers.modules [--all]

Its modules change global flags of torch when they are imported, so this is a program of its own. Each layer of torch is converted
to ours; both get the same inputs. Without --all: float32 only.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import types
import unittest
import warnings
from typing import Any

import torch
from torch import nn

import anynorm

stub: Any = types.ModuleType("expecttest")  # torch's tests compare printed text with it, which no case here does
stub.TestCase = unittest.TestCase
sys.modules.setdefault("expecttest", stub)

from torch.testing._internal.common_modules import module_db  # noqa: E402

NORMS = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
]
TOLERANCE: dict[Any, Any] = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-9}}


def run_pass(module: Any, args: tuple[Any, ...], layout: str) -> dict[str, Any]:
    """Return output, gradients and state of a pass; or the kind of its error."""
    x = args[0].detach()
    if layout == "strided":
        x = torch.stack([x, x], -1)[..., 0]
    x.requires_grad_()
    try:
        y = module(x)
    except Exception as error:
        return {"error": isinstance(error, ValueError | RuntimeError)}
    if y.numel():
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
        (y * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"output": y.detach(), "input": x.grad, "parameters": gradients, "state": dict(module.state_dict())}


def difference(ours: Any, theirs: Any, dtype: torch.dtype) -> str:
    """Return how two results differ; nothing if they are equal."""
    if ("error" in ours) != ("error" in theirs):
        return f"error: ours {'error' in ours}, torch's {'error' in theirs}"
    for name, value in theirs.items():
        try:
            torch.testing.assert_close(ours[name], value, **TOLERANCE[dtype])
        except AssertionError as error:
            return f"{name}: {str(error).splitlines()[0]}"
    return ""


def checks(theirs: Any, ours: Any, args: tuple[Any, ...], dtype: torch.dtype) -> dict[str, str]:
    """Return the result of each check: how ours differs from torch's; nothing if they are equal."""
    results = {}
    for layout in ("contiguous", "strided"):
        actual, wanted = (run_pass(copy.deepcopy(module), args, layout) for module in (ours, theirs))
        results[layout] = difference(actual, wanted, dtype)
    loaded = copy.deepcopy(ours)
    try:
        loaded.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        results["load_state_dict"] = str(error).splitlines()[1].strip()
    copies = {"deepcopy": copy.deepcopy(ours), "pickle": pickle.loads(pickle.dumps(ours)), "load_state_dict": loaded}
    expected = run_pass(ours, args, "contiguous")
    for name, module in copies.items():
        results[name] = results.get(name) or difference(run_pass(module, args, "contiguous"), expected, dtype)
    return results


def case(info: Any, example: Any, dtype: torch.dtype, *, training: bool) -> dict[str, str]:
    """Return the result of each check of one case of the database."""
    constructor = example.constructor_input
    theirs = info.module_cls(*constructor.args, **constructor.kwargs, dtype=dtype).train(training)
    try:
        ours: Any = anynorm.convert(nn.Sequential(copy.deepcopy(theirs)), anynorm.read_norm(theirs).spec, where="all").model
    except anynorm.AnynormError as error:
        return {"convert": str(error)}
    return {"convert": ""} | checks(theirs, ours[0], example.forward_input.args, dtype)


def error_cases(info: Any) -> dict[str, str]:
    """Return how ours differs for the cases in which torch's layer raises: not at all, if ours raises too."""
    results: dict[str, str] = {}
    if info.module_error_inputs_func is None:
        return results
    for example in info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True):
        inputs = example.module_error_input
        constructor = inputs.constructor_input
        if not inputs.forward_input.args:  # the constructor of torch's layer raises
            continue
        described = f"error {constructor.args} {constructor.kwargs} {tuple(inputs.forward_input.args[0].shape)}"
        try:
            anynorm.convert(model := nn.Sequential(info.module_cls(*constructor.args, **constructor.kwargs)), "gn:1", where="all")
            model(*inputs.forward_input.args)
        except ValueError:
            results[described] = ""
        else:
            results[described] = f"ours raises no error; torch's: {example.error_regex}"
    return results


def main(*, everything: bool) -> None:
    """Run all cases and print a line per check."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtypes = (torch.float32, torch.float64) if everything else (torch.float32,)
    for info in [info for info in module_db if info.module_cls.__name__ in NORMS]:
        for described, result in error_cases(info).items():
            row = {"module": info.module_cls.__name__, "case": described, "dtype": "torch.float32", "training": True}
            sys.stdout.write(json.dumps(row | {"check": "error", "result": result}) + "\n")
        for dtype in dtypes:
            for training in (True, False):
                torch.manual_seed(0)
                examples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training)
                for number, example in enumerate(examples):
                    described = f"{number} {example.desc or 'default'}"
                    for check, result in case(info, example, dtype, training=training).items():
                        row = {"module": info.module_cls.__name__, "case": described, "dtype": str(dtype), "training": training}
                        sys.stdout.write(json.dumps(row | {"check": check, "result": result}) + "\n")


if __name__ == "__main__":
    main(everything="--all" in sys.argv)
