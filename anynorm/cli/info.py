"""`anynorm info`: versions, devices and available kernels."""

from __future__ import annotations

from typing import Any

from anynorm.cli.options import AsJson, make_console, print_json


def info(as_json: AsJson = False) -> None:
    """Print versions, devices, the number of threads, and which kernels are available (or why not)."""
    rows = describe()
    if as_json:
        print_json(rows)
        return
    width = max(map(len, rows))
    console = make_console()
    for name, text in rows.items():
        console.print(f"{name:<{width}}  {text}", highlight=False, markup=False)


def describe() -> dict[str, Any]:
    """Return the output of `anynorm info` as a dictionary."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    import anynorm
    from anynorm import kernels

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        "anynorm": anynorm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "processor": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "GPUs": ", ".join(devices) or "none",
        **{f"kernels: {name}": text for name, text in kernels.describe().items()},
    }
