"""Generate the tables of benchmarks/README.md and of two guides from benchmarks/results/*.json, and print the targets.

    python benchmarks/report.py

The scripts layers, model, startup, reference, baselines, stream, conditional and deployment write these files (`--json`); `make
bench` runs all and then this one. A section is left out if its file does not exist. A test fails if a page differs from what the
files give.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from targets import MODE, Results, Target, all_targets

FOLDER = Path(__file__).parent
GUIDE = FOLDER.parent / "docs" / "guide"
GUIDES = {"conditional": GUIDE / "generation.md", "deployment": GUIDE / "deployment.md"}
"""The guides that show the section of a file."""
START, END = "<!-- results -->", "<!-- end of results -->"
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
"""Limits of the classes of sizes of x, in MB."""


def targets_section(targets: list[Target]) -> str:
    """Return the conclusion: how many targets are met, and a table of all."""
    rows = [["quantity", "median", "target", "worst", "target", "result"]]
    for target in targets:
        worst = "" if len(target.values) == 1 else f"{target.worst:.3f}"
        limits = [str(limit or "") for limit in (target.median_limit, target.worst_limit)]
        verdict = target.verdict if target.is_met else f"**{target.verdict}**"
        rows.append([target.name, f"{target.median:.3f}", limits[0], worst, limits[1], verdict])
    met = sum(target.is_met for target in targets)
    return f"**{met} of {len(targets)} targets are met.**\n\n{_table(rows)}\n"


def layers_section(results: dict[str, Any]) -> str:
    """Return the layers by size of x, the complete tables, other formats, and the peak memory."""
    threads = sorted({row["threads"] for row in results["rows"]})
    parts = [f"By the size of x, in {MODE} (median, and worst in parentheses):", _sizes_table(results)]
    for count in threads:
        parts += [f"{MODE}, {_threads(count)}: time of nn.BatchNorm / time of each.", _shapes_table(results, count)]
    if results["formats"]:
        text = f"Other dtypes and memory formats, {MODE}: time of nn.BatchNorm2d in the same dtype and format / time of each."
        parts += [text, _formats_table(results["formats"])]
    peak = results["peak"]
    size = 4e-6 * math.prod(peak["shape"])
    rows = [list(peak["megabytes"]), [f"{megabytes * 1.048576 / size:.1f}" for megabytes in peak["megabytes"].values()]]
    text = f"Peak memory of a training step of eight layers at {_times(peak['shape'])}, in tensors of x ({size:.1f} MB):"
    return "\n\n".join([*parts, text, _table(rows)]) + "\n"


def _sizes_table(results: dict[str, Any]) -> str:
    header = ["threads", "MB", "nn.BatchNorm / ours", "ours / nn.GroupNorm", "ours / traffic", "published SN / sn"]
    rows = [header]
    for threads in sorted({row["threads"] for row in results["rows"]}):
        for low, high in pairwise(SIZES):
            selected = [row for row in results["rows"] if row["threads"] == threads and low <= row["megabytes"] < high]
            cells = [(row["seconds"][MODE], s) for row in selected for s in results["specs"] if s in row["seconds"][MODE]]
            if not cells:
                continue
            columns = [
                _median_and_worst([times["nn.BatchNorm"] / times[spec] for times, spec in cells], min),
                _median_and_worst([times[spec] / times["nn.GroupNorm"] for times, spec in cells], max),
                _median_and_worst([times[spec] / times["traffic"] for times, spec in cells], max),
                _median_and_worst([times["published SN"] / times[spec] for times, spec in cells if spec == "sn"], min),
            ]
            rows.append([str(threads), f"{low:g}–{high:g}", *columns])
    return _table(rows)


def _shapes_table(results: dict[str, Any], threads: int) -> str:
    selected = [row for row in results["rows"] if row["threads"] == threads]
    columns = [name for name in LAYER_COLUMNS if any(name in row["seconds"][MODE] for row in selected)] + ["traffic", "copy"]
    rows = [["shape", "MB", "nn.BatchNorm (ms)", *columns]]
    for row in selected:
        times = row["seconds"][MODE]
        rows.append(
            [_times(row["shape"]), f"{row['megabytes']:.2f}", f"{times['nn.BatchNorm'] * 1e3:.3f}", *_ratios(times, columns)]
        )
    return _table(rows)


def _formats_table(formats: list[dict[str, Any]]) -> str:
    columns = [name for name in formats[0]["seconds"] if name != "nn.BatchNorm"]
    rows = [["shape", "dtype", "memory format", "threads", "nn.BatchNorm2d (ms)", *columns]]
    for row in formats:
        times = row["seconds"]
        names = [_times(row["shape"]), row["dtype"], row["memory_format"], str(row["threads"])]
        rows.append([*names, f"{times['nn.BatchNorm'] * 1e3:.3f}", *_ratios(times, columns)])
    return _table(rows)


def model_section(results: dict[str, Any]) -> str:
    """Return the time of networks relative to nn.BatchNorm2d."""
    base, *norms = results["norms"]
    rows = [["network", "batch size", "mode", f"{base} (ms)", *norms]]
    for row in results["rows"]:
        times = row["seconds"]
        ratios = [f"{times[norm] / times[base]:.2f}" for norm in norms]
        rows.append([row["network"], str(row["batch_size"]), row["mode"], f"{times[base] * 1e3:.1f}", *ratios])
    return f"Time of each / time with {base}, {_threads(results['threads'])}:\n\n{_table(rows)}\n"


def startup_section(results: dict[str, Any]) -> str:
    """Return the times of new processes."""
    rows = [["process", "seconds"], *([name, f"{seconds:.2f}"] for name, seconds in results["seconds"].items())]
    return f"From the start of a process to its first output:\n\n{_table(rows)}\n"


def reference_section(results: dict[str, Any]) -> str:
    """Return what the reference kernels save, and their passes over x."""
    header = ["norm", "saved / x", "eager, forward", "eager, backward", "compiled, forward", "compiled, backward"]
    rows = [[f"`{row['spec']}`", f"{row['saved']:.2f}", *map(str, [*row["eager"], *row["compiled"]])] for row in results["rows"]]
    text = f"Training at {_times(results['shape'])}, float32: bytes saved for backward / bytes of x, and passes over x."
    return f"{text}\n\n{_table([header, *rows])}\n"


def baselines_section(results: dict[str, Any]) -> str:
    """Return the times of the baselines outside the algebra, and what they save."""
    shapes = results["shapes"]
    rows = [["norm", *map(_times, shapes)]]
    for row in results["rows"]:
        cells = [f"{ratio:.2f} ({saved:.1f} x)" for ratio, saved in zip(row["ratios"], row["saved"], strict=True)]
        rows.append([f"`{row['norm']}`", *cells])
    text = f"Time of {MODE} / time of nn.BatchNorm2d, and in parentheses the bytes saved for backward / bytes of x; one thread:"
    return f"{text}\n\n{_table(rows)}\n"


def stream_section(results: dict[str, Any]) -> str:
    """Return the speed of training from streamed images."""
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
    return f"{text}\n\n{_table(rows)}\n"


def conditional_section(results: dict[str, Any]) -> str:
    """Return the cost of conditional norms in the generator of SNGAN."""
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
    return f"{text}\n\n{_table(rows)}\n\n{finding}"


def deployment_section(results: dict[str, Any]) -> str:
    """Return the latency of inference by runtime, and the accuracy in int8."""
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
    parts = [f"{text} ({versions}):\n\n{_table(rows)}\n"]
    if results["quantization"]:
        header = ["ResNet-20 on CIFAR-10", "accuracy (%)", "predictions as in float32 (%)"]
        accuracies = [
            [name, f"{row['accuracy']:.2f}", f"{row['agreement']:.2f}"] for name, row in results["quantization"]["rows"].items()
        ]
        parts.append(f"int8 on {results['quantization']['num_images']} test images:\n\n{_table([header, *accuracies])}\n")
    return "\n".join(parts)


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "layers": ("Layers", layers_section),
    "model": ("Networks", model_section),
    "startup": ("Start of a process", startup_section),
    "reference": ("Reference kernels", reference_section),
    "baselines": ("Baselines outside the algebra", baselines_section),
    "stream": ("Streamed images", stream_section),
    "conditional": ("Conditional norms", conditional_section),
    "deployment": ("Deployment", deployment_section),
}


def read_results(folder: Path) -> Results:
    """Return the contents of the JSON files that exist."""
    paths = {name: folder / f"{name}.json" for name in SECTIONS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def report(results: Results) -> str:
    """Return the generated part of README.md: the targets, then one section per file."""
    targets = all_targets(results)
    parts = [targets_section(targets)] if targets else []
    for name, (title, section) in SECTIONS.items():
        if name in results:
            used = results[name]["kernels"]["reference" if name == "reference" else "cpu"]
            parts.append(f"## {title}\n\n{_environment(results[name])}; kernels: {used}.\n\n{section(results[name])}")
    return "\n".join(parts)


def insert(content: str, text: str) -> str:
    """Return a text with new content between its two markers.

    Raises:
        ValueError: if the text does not have both markers.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the text must have a line {START} and a line {END}, between which the results go.")
    return f"{before}{START}\n{content}\n{END}{after}"


def _environment(results: dict[str, Any]) -> str:
    versions = f"torch {results['torch']}, Python {results['python']}"
    return f"`{results['command']}`: {results['hardware']}, {versions}"


def _table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _ratios(times: dict[str, float], names: list[str]) -> list[str]:
    return [f"{times['nn.BatchNorm'] / times[name]:.2f}" if name in times else "–" for name in names]


def _median_and_worst(values: list[float], worst: Callable[[list[float]], float]) -> str:
    return f"{statistics.median(values):.2f} ({worst(values):.2f})" if values else "–"


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def guide_report(name: str, results: Results) -> str:
    """Return the generated part of a guide: the section of one file."""
    return f"{_environment(results[name])}.\n\n{SECTIONS[name][1](results[name])}"


def main() -> None:
    """Write the generated parts of README.md and of the guides, and print one line per target."""
    results = read_results(FOLDER / "results")
    pages = {FOLDER / "README.md": report(results)} | {page: guide_report(name, results) for name, page in GUIDES.items()}
    for page, content in pages.items():
        page.write_text(insert(content, page.read_text()))
    for target in all_targets(results):
        print(target)


if __name__ == "__main__":
    main()
