"""The self-test as a whole, and its report: a table with one row per norm, the finding, and all numbers as JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

import anynorm
from anynorm import kernels
from anynorm.progress import track
from anynorm.registry import parse
from anynorm.selftest.cases import make_cases, zoo_specs
from anynorm.selftest.comparisons import Comparison, compare
from anynorm.selftest.devices import device_name, dtypes_of, timed_shape
from anynorm.selftest.timings import Timing, make_timed_cases, time_case
from anynorm.table import Table, json_safe

NUM_LISTED = 3
"""Number of differing passes that the finding lists."""


@dataclass
class SelftestReport:
    """The results of a self-test.

    Args:
        device: the device.
        comparisons: all comparisons with the reference.
        timings: all timings.
    """

    device: torch.device
    comparisons: list[Comparison]
    timings: list[Timing]

    @property
    def differing(self) -> list[Comparison]:
        """The comparisons that differ, the largest error first."""
        return sorted((each for each in self.comparisons if not each.agrees), key=lambda each: -each.worst)

    @property
    def finding(self) -> str:
        """The conclusion: whether all passes agree, the time relative to torch's layers, and whether kernels of anynorm ran."""
        wrong, count = self.differing, len(self.comparisons)
        text = f"All {count} comparisons agree"
        if wrong:
            listed = "; ".join(map(str, wrong[:NUM_LISTED])) + f"; and {len(wrong) - NUM_LISTED} more" * (len(wrong) > NUM_LISTED)
            text = f"{len(wrong)} of {count} comparisons differ: {listed}"
        ratios = [timing.ratio for timing in self.timings if timing.ratio is not None]
        text += f"; median {statistics.median(ratios):.2f} of torch's time." if ratios else "."
        if failed := len(self.timings) - len(ratios):
            text += f" {failed} of {len(self.timings)} passes could not be timed."
        backend = kernels.backend_of(self.device)
        if backend == "reference":
            return f"{text} anynorm has no kernels for {self.device}: plain torch operations ran."
        if not any(each.kernels == backend for each in self.comparisons):
            text += (
                f" The {backend} kernels did not run on {self.device}, plain torch operations did: {kernels.describe()[backend]}."
            )
        return text

    def table(self) -> Table:
        """Return one row per norm.

        The columns ms, GB/s and of copy are for a contiguous x of float32 without activation; the ratios to torch's layer are
        medians over both memory formats, with and without ReLU.
        """
        specs = list(dict.fromkeys(comparison.case.spec for comparison in self.comparisons))
        columns = {"worst error / tolerance": ".2f", "ms": ".2f", "GB/s": ".1f", "of copy": ".2f"}
        ratios = {f"{dtype} / torch": ".2f" for dtype in dtypes_of(self.device)}
        return Table([self._row(spec) for spec in specs], self.finding, formats=columns | ratios)

    def _row(self, spec: str) -> dict[str, Any]:
        comparisons = [each for each in self.comparisons if each.case.spec == spec]
        timings = [each for each in self.timings if each.case.spec == spec]
        dtypes = dtypes_of(self.device)
        plain = next((each for each in timings if _is_plain(each, dtypes[0])), None)
        row: dict[str, Any] = {
            "norm": spec,
            "kernels": ", ".join(dict.fromkeys(each.kernels for each in comparisons)),
            "comparisons": len(comparisons),
            "differ": sum(not each.agrees for each in comparisons),
            "worst error / tolerance": max(each.worst for each in comparisons),
            "ms": None if plain is None or plain.seconds is None else 1e3 * plain.seconds,
            "GB/s": None if plain is None else plain.gigabytes_per_second,
            "of copy": None if plain is None else plain.copy_share,
        }
        for dtype in dtypes:
            ratios = [each.ratio for each in timings if each.case.dtype == dtype and each.ratio is not None]
            row[f"{dtype} / torch"] = statistics.median(ratios) if ratios else None
        return row

    def to_dict(self) -> dict[str, Any]:
        """Return the finding, the environment, and every comparison and timing, as values of JSON."""
        return {
            "finding": self.finding,
            "environment": environment(self.device),
            "comparisons": [each.to_dict() for each in self.comparisons],
            "timings": [_flat(each) for each in self.timings],
        }

    def json(self) -> str:
        """Return `to_dict` as JSON, with one line per comparison and timing."""
        data = self.to_dict()
        lists = {name: data.pop(name) for name in ("comparisons", "timings")}
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
        for name, rows in lists.items():
            lines = ",\n  ".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
            text += f',\n "{name}": [\n  {lines}\n ]'
        return text + "\n}\n"


def run_selftest(device: torch.device, specs: Sequence[str] | None = None, dtypes: Sequence[str] | None = None) -> SelftestReport:
    """Compare norms with the reference on a device, and time them; both with a progress bar.

    Args:
        device: the device, see `find_device`.
        specs: spec strings of the norms; None for the zoo.
        dtypes: dtypes such as "float32"; None for those that the kernels of the device support.

    Raises:
        SpecError: if a spec is invalid.
    """
    specs, dtypes = zoo_specs() if specs is None else specs, dtypes_of(device) if dtypes is None else dtypes
    for spec in specs:
        parse(spec)
    comparisons = [each for case in track(make_cases(specs, dtypes), "comparing") for each in compare(case, device)]
    timed = make_timed_cases(specs, dtypes, timed_shape(device))
    return SelftestReport(device, comparisons, [time_case(case, device) for case in track(timed, "timing")])


def environment(device: torch.device) -> dict[str, Any]:
    """Return the versions, the device, the number of threads and the kernels."""
    versions = {"anynorm": anynorm.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        **versions,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "platform": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "kernels": kernels.describe(),
    }


def _flat(timing: Timing) -> dict[str, Any]:
    row: dict[str, Any] = json_safe(timing)
    return {**row.pop("case"), **row}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_plain(timing: Timing, dtype: str) -> bool:
    """Whether x is contiguous, of a dtype, and no activation follows."""
    return (timing.case.dtype, timing.case.layout, timing.case.activation) == (dtype, "contiguous", None)
