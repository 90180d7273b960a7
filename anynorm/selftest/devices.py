"""The device of a self-test: its choice, its name, and the time that a call takes on it.

Everything that differs between CPU and GPU is in this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anynorm import kernels
from anynorm.errors import DataError, SpecError
from anynorm.io.processor import processor_name

KINDS = ("cuda", "xpu", "mps", "cpu")
"""The types of devices that can be tested, in order of preference."""
CPU_SHAPE, GPU_SHAPE = (16, 64, 28, 28), (32, 256, 56, 56)
"""Shapes of timed inputs: 3 MB and 103 MB in float32. On a GPU, x must be larger than the cache and take longer than launches."""


def available_devices() -> list[str]:
    """Return the types of devices of this machine that can be tested, in order of preference."""
    return [kind for kind in KINDS if kind == "cpu" or getattr(torch, kind).is_available()]


def find_device(name: str) -> torch.device:
    """Return the device of a name.

    Args:
        name: "auto" for a GPU if there is one, or a name of torch such as "cpu", "cuda" or "cuda:1".

    Raises:
        SpecError: if torch does not have such a device, or it cannot be tested.
        DataError: if this machine does not have the device.
    """
    found = available_devices()
    try:
        device = torch.device(found[0] if name == "auto" else name)
    except RuntimeError:
        raise SpecError(
            f"device must be auto, {', '.join(KINDS)}, or a name with a number such as cuda:1; got {name!r}."
        ) from None
    if device.type not in KINDS:
        raise SpecError(f"device must be auto, {', '.join(KINDS)}, or a name with a number such as cuda:1; got {name!r}.")
    count = getattr(torch, device.type).device_count() if device.type in found else 0
    if (device.index or 0) >= count:
        raise DataError(
            f"device {name} is not available; this machine has {' '.join(found)}. "
            "`anynorm info` prints the devices that torch finds."
        )
    return device


def device_name(device: torch.device) -> str:
    """Return the name of the processor or the GPU."""
    if device.type == "cpu":
        return processor_name()
    return str(getattr(torch, device.type).get_device_name(device)) if device.type in ("cuda", "xpu") else device.type


def dtypes_of(device: torch.device) -> list[str]:
    """Return the dtypes that the kernels of a device support, such as "float32"."""
    return [str(dtype).removeprefix("torch.") for dtype in kernels.supported_dtypes(kernels.backend_of(device))]


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Run operations on the CPU in a number of threads inside a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timed_shape(device: torch.device) -> tuple[int, ...]:
    """Return the shape of the inputs to time on a device."""
    return CPU_SHAPE if device.type == "cpu" else GPU_SHAPE


class Timer:
    """Measures the time of calls on a device.

    On CUDA and ROCm, the time between two events on the current stream: it includes the kernels of the call and the gaps between
    them, and no earlier work. On other devices, the time until the device has finished.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the time of a call in seconds."""
        return self._seconds_by_events(call) if self._device.type == "cuda" else self._seconds_by_clock(call)

    def synchronize(self) -> None:
        """Wait until the device has finished all work; do nothing on the CPU."""
        if self._device.type != "cpu":
            getattr(torch, self._device.type).synchronize()

    def _seconds_by_clock(self, call: Callable[[], object]) -> float:
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def _seconds_by_events(self, call: Callable[[], object]) -> float:
        with torch.cuda.device(self._device):  # events belong to the current device
            events: Any = torch.cuda.Event
            start, end = events(enable_timing=True), events(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
