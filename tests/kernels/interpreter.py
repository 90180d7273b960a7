"""Triton's interpreter, for kernels on CPU tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from triton.runtime import interpreter

from anynorm.kernels import gpu, gpu_kernels

CALL = interpreter.InterpretedFunction.__call__


def call_function(function, *args, **kwargs):
    is_ours = function.fn.__module__ == gpu_kernels.__name__
    return function.rewrite()(*args, **kwargs) if is_ours else CALL(function, *args, **kwargs)


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Leave out the check at first use, which has a test of its own, and what makes the interpreter slow."""
    builder = interpreter.interpreter_builder
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpu.problems, torch.device("cpu"), "")
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))  # checks of integer overflow
        patch.setattr(interpreter.InterpretedFunction, "__call__", call_function)  # each call patches Triton's language again
        yield
