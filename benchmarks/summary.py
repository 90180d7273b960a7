"""The first part of benchmarks/README.md: times relative to torch, and the targets.

The table of times is also shown in docs/questions.md.
"""

from __future__ import annotations

import statistics
from typing import Any

from aims import Aim
from sections import table
from targets import MODE, Results, Target

NORMS = ("bn", "in", "ln", "gn", "hn", "bgn", "sn", "sabn", "auxbn")
"""The columns of the table: specs of the benchmarks without their numbers."""
Case = list[tuple[dict[str, float], str]]
"""Pairs of times by the name of a layer, and the name of the torch layer to which they are relative."""


def summary_section(results: Results) -> str:
    """Return a table of times relative to nn.BatchNorm by kind of input, and the time of gn relative to nn.GroupNorm."""
    cases = _layer_cases(results["layers"]) if "layers" in results else {}
    cases |= _model_cases(results["model"]) if "model" in results else {}
    rows = [["", *(f"`{norm}`" for norm in NORMS)]]
    rows += [[name, *(_cell(case, norm) for norm in NORMS)] for name, case in cases.items() if case]
    text = (
        "Time relative to nn.BatchNorm for the same input, on the CPU in eager mode: median, and the largest in parentheses. "
        "**Bold: slower than torch** in the median."
    )
    parts = [text, table(rows)]
    if "layers" in results:
        ratios = _of_norm([(row["seconds"][MODE], "nn.GroupNorm") for row in results["layers"]["rows"]], "gn")
        parts += [f"`gn` takes {_median_and_largest(ratios)} of the time of nn.GroupNorm."] if ratios else []
    return "\n\n".join(parts) + "\n"


def _layer_cases(results: dict[str, Any]) -> dict[str, Case]:
    """Return the times of benchmarks/layers.py by kind of input."""

    def select(condition: Any) -> Case:
        return [(row["seconds"][MODE], "nn.BatchNorm") for row in results["rows"] if condition(row["shape"])]

    def of_format(dtype: str, memory_format: str) -> Case:
        rows = [row for row in results["formats"] if (row["dtype"], row["memory_format"]) == (dtype, memory_format)]
        return [(row["seconds"], "nn.BatchNorm") for row in rows]

    return {
        "layer, training, maps of more than 7 × 7": select(lambda shape: len(shape) > 2 and shape[-1] > 7),
        "layer, training, maps of 7 × 7": select(lambda shape: shape[-1] == 7),
        "layer, training, vectors (n, c)": select(lambda shape: len(shape) == 2),
        "layer, training, channels_last": of_format("float32", "channels_last"),
        "layer, training, bfloat16": of_format("bfloat16", "contiguous_format"),
        "layer, training, bfloat16 in channels_last": of_format("bfloat16", "channels_last"),
    }


def _model_cases(results: dict[str, Any]) -> dict[str, Case]:
    """Return the times of benchmarks/model.py by mode."""
    modes = {f"network, {mode}": mode for mode in ("training step", "inference")}
    return {
        name: [(row["seconds"], results["norms"][0]) for row in results["rows"] if row["mode"] == mode]
        for name, mode in modes.items()
    }


def _of_norm(case: Case, norm: str) -> list[float]:
    """Return the times of a norm, with any numbers in its spec, relative to the torch layer."""
    return [
        seconds / times[base]
        for times, base in case
        for name, seconds in times.items()
        if name.replace("@", ":").partition(":")[0] == norm
    ]


def _cell(case: Case, norm: str) -> str:
    ratios = _of_norm(case, norm)
    if not ratios:
        return "–"
    text = _median_and_largest(ratios)
    return f"**{text}**" if statistics.median(ratios) > 1 else text


def _median_and_largest(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({max(ratios):.2f})"


def targets_section(targets: list[Target]) -> str:
    """Return the number of targets that are met, and a table of all targets."""
    rows = [["quantity", "median", "target", "worst", "target", "result"]]
    for target in targets:
        worst = "" if len(target.values) == 1 else f"{target.worst:.3f}"
        limits = [str(limit or "") for limit in (target.median_limit, target.worst_limit)]
        verdict = target.verdict if target.is_met else f"**{target.verdict}**"
        rows.append([target.name, f"{target.median:.3f}", limits[0], worst, limits[1], verdict])
    met = sum(target.is_met for target in targets)
    text = f"**{met} of {len(targets)} targets are met.** Values are ratios of times, unless a unit is given; below 1 is faster."
    return f"{text}\n\n{table(rows)}\n"


def aims_section(aims: list[Aim]) -> str:
    """Return the number of aims that are met, and a table of all aims."""
    rows = [["aim", "threads", "measured", "AMD / Intel", "result"]]
    rows += [[*aim.cells[:-1], aim.verdict if aim.is_met or aim.measured is None else f"**{aim.verdict}**"] for aim in aims]
    measured = [aim for aim in aims if aim.measured is not None]
    missing = len(aims) - len(measured)
    text = f"**{sum(aim.is_met for aim in measured)} of {len(measured)} aims are met**"
    text += f", and {missing} are not measured yet." if missing else "."
    note = "An aim bounds the median or the worst ratio over norms and shapes, in float32; the bound of the processor counts."
    return f"{text} {note}\n\n{table(rows)}\n{_missed_section(measured)}"


def _missed_section(aims: list[Aim]) -> str:
    """Return a list of the aims that are missed: the largest ratios, and what a profile showed to be the cause."""
    items = []
    for name, statistic in dict.fromkeys((aim.name, aim.statistic) for aim in aims if not aim.is_met):
        missed = [aim for aim in aims if (aim.name, aim.statistic) == (name, statistic) and not aim.is_met]
        largest = max(missed, key=lambda aim: max(aim.values))
        cases = ", ".join(f"{ratio:.2f} ({case})" for case, ratio in largest.largest)
        threads = f"{largest.threads} thread{'s' * (largest.threads > 1)}"
        above = sum(ratio > largest.bound for ratio in largest.values)
        measured = f"ratios above the bound with {threads}: {above} of {len(largest.values)}, the largest {cases}."
        items.append(f"- *{name}, {statistic}*: {measured} {largest.cause}".rstrip())
    if not items:
        return ""
    text = "Why aims are missed (shares of CPU time by `perf record` on an AMD EPYC with one thread, commit 4eac878):"
    return f"\n{text}\n\n" + "\n".join(items) + "\n"
