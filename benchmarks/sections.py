"""The sections of benchmarks/README.md: one function per results file, which returns its tables as Markdown.

Ratios are the time divided by the time of torch's layer; below 1 is faster than torch.
"""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

from targets import MODE

LAYER_COLUMNS = (
    "nn.GroupNorm",
    "published SN",
    "sn by reference",
    "sn compiled",
    "bn",
    "gn:32",
    "hn:32",
    "sn",
    "bgn:32",
    "sabn@10",
)
SIZES = (0.1, 0.5, 2, 6, 20, 100)
"""Boundaries of the ranges of the size of x, in MB."""


def layers_section(results: dict[str, Any]) -> str:
    """Return tables of the time of layers by size of x, by shape, and in other formats, and of peak memory."""
    threads = sorted({row["threads"] for row in results["rows"]})
    parts = [f"By the size of x, in {MODE} (median, and largest in parentheses):", _sizes_table(results)]
    for count in threads:
        parts += [f"{MODE}, {_threads(count)}: time of each / time of nn.BatchNorm.", _shapes_table(results, count)]
    if results["formats"]:
        text = f"Other dtypes and memory formats, {MODE}: time of each / time of nn.BatchNorm2d in the same dtype and format."
        parts += [text, _formats_table(results["formats"])]
    peak = results["peak"]
    size = 4e-6 * math.prod(peak["shape"])
    rows = [list(peak["megabytes"]), [f"{megabytes * 1.048576 / size:.1f}" for megabytes in peak["megabytes"].values()]]
    text = f"Peak memory of a training step of eight layers at {_times(peak['shape'])}, in tensors of x ({size:.1f} MB):"
    return "\n\n".join([*parts, text, table(rows)]) + "\n"


def _sizes_table(results: dict[str, Any]) -> str:
    header = ["threads", "MB", "ours / nn.BatchNorm", "ours / nn.GroupNorm", "ours / traffic", "sn / published SN"]
    rows = [header]
    for threads in sorted({row["threads"] for row in results["rows"]}):
        for low, high in pairwise(SIZES):
            selected = [row for row in results["rows"] if row["threads"] == threads and low <= row["megabytes"] < high]
            cells = [(row["seconds"][MODE], s) for row in selected for s in results["specs"] if s in row["seconds"][MODE]]
            if not cells:
                continue
            columns = [
                _median_and_worst([times[spec] / times["nn.BatchNorm"] for times, spec in cells]),
                _median_and_worst([times[spec] / times["nn.GroupNorm"] for times, spec in cells]),
                _median_and_worst([times[spec] / times["traffic"] for times, spec in cells]),
                _median_and_worst([times[spec] / times["published SN"] for times, spec in cells if spec == "sn"]),
            ]
            rows.append([str(threads), f"{low:g}–{high:g}", *columns])
    return table(rows)


def _shapes_table(results: dict[str, Any], threads: int) -> str:
    selected = [row for row in results["rows"] if row["threads"] == threads]
    columns = [name for name in LAYER_COLUMNS if any(name in row["seconds"][MODE] for row in selected)] + ["traffic", "copy"]
    rows = [["shape", "MB", "nn.BatchNorm (ms)", *columns]]
    for row in selected:
        times = row["seconds"][MODE]
        rows.append(
            [_times(row["shape"]), f"{row['megabytes']:.2f}", f"{times['nn.BatchNorm'] * 1e3:.3f}", *_ratios(times, columns)]
        )
    return table(rows)


def _formats_table(formats: list[dict[str, Any]]) -> str:
    columns = [name for name in formats[0]["seconds"] if name != "nn.BatchNorm"]
    rows = [["shape", "dtype", "memory format", "threads", "nn.BatchNorm2d (ms)", *columns]]
    for row in formats:
        times = row["seconds"]
        names = [_times(row["shape"]), row["dtype"], row["memory_format"], str(row["threads"])]
        rows.append([*names, f"{times['nn.BatchNorm'] * 1e3:.3f}", *_ratios(times, columns)])
    return table(rows)


def fused_section(results: dict[str, Any]) -> str:
    """Return tables of the time of norms with addition and ReLU relative to torch's separate operations, eager and compiled."""
    kinds = [(results["rows"], kind, "") for kind in (results["rows"][0]["seconds"] if results["rows"] else ())]
    kinds += [
        (results["compiled"], kind, ", compiled") for kind in (results["compiled"][0]["seconds"] if results["compiled"] else ())
    ]
    parts = []
    for measured, kind, suffix in kinds:
        _, *names = measured[0]["seconds"][kind]
        rows = [["shape", "threads", "torch (ms)", *(f"`{name}`" for name in names)]]
        for row in measured:
            times = row["seconds"][kind]
            ratios = [f"{times[name] / times['torch']:.2f}" for name in names]
            rows.append([_times(row["shape"]), str(row["threads"]), f"{times['torch'] * 1e3:.3f}", *ratios])
        parts.append(f"{kind}{suffix}, {MODE}: time of each / time of nn.BatchNorm2d and separate operations.\n\n{table(rows)}\n")
    return "\n".join(parts)


def model_section(results: dict[str, Any]) -> str:
    """Return a table of the time of networks relative to nn.BatchNorm2d."""
    base, *norms = results["norms"]
    parts = []
    for threads in sorted({row.get("threads", results.get("threads")) for row in results["rows"]}):
        rows = [["network", "batch size", "mode", f"{base} (ms)", *norms]]
        for row in results["rows"]:
            if row.get("threads", results.get("threads")) == threads:
                times = row["seconds"]
                ratios = [f"{times[norm] / times[base]:.2f}" if norm in times else "–" for norm in norms]
                rows.append([row["network"], str(row["batch_size"]), row["mode"], f"{times[base] * 1e3:.1f}", *ratios])
        parts.append(f"Time of each / time with {base}, {_threads(threads)}:\n\n{table(rows)}\n")
    return "\n".join(parts)


def startup_section(results: dict[str, Any]) -> str:
    """Return a table of the start times of new processes."""
    rows = [["process", "seconds"], *([name, f"{seconds:.2f}"] for name, seconds in results["seconds"].items())]
    return f"From the start of a process to its first output:\n\n{table(rows)}\n"


def reference_section(results: dict[str, Any]) -> str:
    """Return a table of the bytes that the reference kernels save, and their passes over x."""
    header = ["norm", "saved / x", "eager, forward", "eager, backward", "compiled, forward", "compiled, backward"]
    rows = [[f"`{row['spec']}`", f"{row['saved']:.2f}", *map(str, [*row["eager"], *row["compiled"]])] for row in results["rows"]]
    text = f"Training at {_times(results['shape'])}, float32: bytes saved for backward / bytes of x, and passes over x."
    return f"{text}\n\n{table([header, *rows])}\n"


def baselines_section(results: dict[str, Any]) -> str:
    """Return a table of the times of the baselines outside the algebra, and the bytes that they save."""
    shapes = results["shapes"]
    rows = [["norm", *map(_times, shapes)]]
    for row in results["rows"]:
        cells = [f"{ratio:.2f} ({saved:.1f} x)" for ratio, saved in zip(row["ratios"], row["saved"], strict=True)]
        rows.append([f"`{row['norm']}`", *cells])
    text = f"Time of {MODE} / time of nn.BatchNorm2d, and in parentheses the bytes saved for backward / bytes of x; one thread:"
    return f"{text}\n\n{table(rows)}\n"


def stream_section(results: dict[str, Any]) -> str:
    """Return a table of the speed of training from streamed images."""
    header = ["images", "threads", "images/s (best)", "of memory, best", "of memory, median round", "CPU time of memory / of it"]
    rows = [[*header, "MB per worker"]]
    for row in results["rows"]:
        ratios = [f"{row[name]:.2f}" for name in ("ratio", "median_ratio", "cpu_ratio")]
        peaks = " ".join(f"{peak:.0f}" for peak in row["worker_megabytes"])
        rows.append(
            [
                row["name"].partition(", ")[0] if row["workers"] is None else row["name"].rpartition(", ")[0],
                str(row["threads"]),
                f"{row['images_per_second']:.1f}",
                *ratios,
                peaks,
            ]
        )
    text = f"ResNet-18 at 64 pixels, batch size {results['batch_size']}, {results['images']} JPEGs; candidates take turns:"
    return f"{text}\n\n{table(rows)}\n"


def conditional_section(results: dict[str, Any]) -> str:
    """Return a table of the cost of conditional norms in the generator of SNGAN."""
    base = results["base"]
    rows = [
        ["classes", "norm", "step (ms)", "step, relative", "Adam update (ms)", "parameters (million)", "saved for backward (MB)"]
    ]
    for row in results["rows"]:
        for norm, seconds in row["seconds"].items():
            rows.append(
                [
                    str(row["classes"]),
                    norm if norm.startswith("nn.") else f"`{norm}`" if norm == "bn" else f"`{norm}@{row['classes']}`",
                    f"{seconds * 1e3:.0f}",
                    f"{seconds / row['seconds'][base]:.2f}",
                    f"{row['update_seconds'][norm] * 1e3:.1f}",
                    f"{row['parameters'][norm] / 1e6:.2f}",
                    f"{row['saved_bytes'][norm] / 1e6:.0f}",
                ]
            )
    text = (
        f"Forward and backward of the generator of SNGAN (32 × 32 pixels, width {results['width']:g}) at batch size "
        f"{results['batch_size']}, {_threads(1)}. CPU times, best of all rounds; relative to {base}:"
    )
    ratios = [
        f"{row['seconds']['sabn'] / row['seconds']['ccbn']:.2f} with {row['classes']} classes"
        for row in results["rows"]
        if {"sabn", "ccbn"} <= set(row["seconds"])
    ]
    finding = f"A step with `sabn`, relative to one with `ccbn`: {', '.join(ratios)}.\n" if ratios else ""
    return f"{text}\n\n{table(rows)}\n\n{finding}"


def deployment_section(results: dict[str, Any]) -> str:
    """Return tables of the latency of inference by runtime, and of the accuracy in int8."""
    base, *others = results["variants"]
    names = [name if name == "folded" else f"`{name}`" for name in others]
    rows = [["batch size", "runtime", f"{base} (ms)", *names, "`gn:8` / folded"]]
    for row in results["rows"]:
        for runtime, times in row["seconds"].items():
            pairs = [*((name, base) for name in others), ("gn:8", "folded")]
            ratios = [f"{times[a] / times[b]:.2f}" if a in times else "fails" for a, b in pairs]
            rows.append([str(row["batch_size"]), runtime, f"{times[base] * 1e3:.2f}", *ratios])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    text = f"Inference of ResNet-20, {_threads(1)}, CPU times, best of all rounds; relative to {base} in the same runtime"
    parts = [f"{text} ({versions}):\n\n{table(rows)}\n"]
    if results["quantization"]:
        header = ["ResNet-20 on CIFAR-10", "accuracy (%)", "agreement with float32 (%)"]
        accuracies = [
            [name, f"{row['accuracy']:.2f}", f"{row['agreement']:.2f}"] for name, row in results["quantization"]["rows"].items()
        ]
        parts.append(f"int8 on {results['quantization']['num_images']} test images:\n\n{table([header, *accuracies])}\n")
    return "\n".join(parts)


def table(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table; the first row is the header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _ratios(times: dict[str, float], names: list[str]) -> list[str]:
    return [f"{times[name] / times['nn.BatchNorm']:.2f}" if name in times else "–" for name in names]


def _median_and_worst(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({max(values):.2f})" if values else "–"


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
