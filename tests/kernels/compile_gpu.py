"""Compile every kernel for three targets, for launches recorded on CPU tensors; print one JSON list."""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anynorm import kernels
from anynorm.kernels import gpu, gpu_kernels
from tests.helpers import condition_for, make

TARGETS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)]
TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int64: "*i64"}
OVER_X = (gpu_kernels.row_sums, gpu_kernels.apply)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def record(spec, dtype, shape, last):
    """The launches of a forward and a backward pass in training."""
    launches: list[Any] = []
    gpu._launch = lambda kernel, grid, *args, **constants: launches.append((kernel, args, constants))
    x = torch.zeros(shape, dtype=dtype).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    norm = make(spec, channels=shape[1])
    with kernels.use("gpu"):
        y = norm(x.requires_grad_(), condition_for(norm, x))
    y.backward(torch.empty_like(x))
    return launches


def source(kernel, args, constants):
    """What the JIT would compile for these arguments."""
    constexprs: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}

    def signature(path, value):
        if isinstance(value, tuple):
            parts = [signature((*path, k), part) for k, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value is None or (isinstance(value, int) and value == 1):
            constexprs[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[path] = [["tt.divisibility", 16]]
        return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32" if isinstance(value, int) else "fp32"

    types = {name: signature((k,), value) for k, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False))}
    for k, name in enumerate(kernel.arg_names[len(args) :], len(args)):
        types[name], constexprs[(k,)] = "constexpr", constants[name]
    return ASTSource(kernel, types, constexprs=constexprs, attrs=attributes)


def inspect(compiled, target):
    """The bytes or registers spilled to local memory, and the widest load from global memory in bits."""
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        spilled = sum(map(int, re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", text)))
        return spilled, max(32 * int(n or 1) for n in re.findall(r"(?:global|buffer)_load_dword(?:x(\d))?", text))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    (stack, local) = re.search(r"STACK:(\d+).*LOCAL:(\d+)", usage).groups()
    loads = re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", compiled.asm["ptx"])
    return int(stack) + int(local), max(int(n or 1) * int(bits) for n, bits in loads)


def main():
    gpu.problems[torch.device("cpu")], gpu_kernels.INTERPRETED = "", True
    last_of_each = {launch[0]: launch for launch in record("in+bn", torch.float32, (8, 32, 14, 14), False)}
    half = [launch for launch in record("bn", torch.bfloat16, (8, 64, 14, 14), True)[:5] if launch[0] in OVER_X]
    rows = []
    for kernel, args, constants in [*last_of_each.values(), *half]:
        for target in TARGETS:
            compiled = triton.compile(source(kernel, args, constants), target=target, options={"enable_fp_fusion": True})
            spilled, bits = inspect(compiled, target)
            rows.append({"kernel": kernel.__name__, "target": str(target.arch), "spilled": spilled, "max_bits": bits})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
