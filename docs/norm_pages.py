"""Generate one page per registered norm from its class, the benchmarks and the records."""

from __future__ import annotations

import json
import re
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Any

from anynorm.core.cuts import JointCut
from anynorm.draw import save_cuts
from anynorm.draw.descriptions import count, formula, list_norms
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.registry import make, parse, summary
from docs.norm_records import example, records

ROOT = Path(__file__).parent.parent
SMALL = 2
"""Maximum number of groups, samples per part, domains and modes in pictures."""
CHANNELS, SHAPE = 64, (8, 64, 16, 16)
"""Number of channels in examples, and the input shape for which statistics are counted."""
ORDER = ("nn.BatchNorm", "nn.GroupNorm")
ONE_COLOR = "Values of one color share a statistic"


def norm_pages() -> dict[str, str]:
    """Return the text of the gallery and of the page of each registered norm, by file name."""
    names = list(REGISTRY)
    return {"norms/index.md": gallery_page(names), **{f"norms/{name}.md": norm_page(name) for name in names}}


def draw_pictures(folder: Path) -> None:
    """Write the pictures of all pages as SVG files."""
    for norm in REGISTRY.values():
        for spec in drawn_specs(norm):
            path, shape = folder / f"{file_name(spec)}.svg", (4, 6, 4) if norm.name == "bgn" else None
            save_cuts(spec, path, shape, legend=False)


def file_name(spec: str) -> str:
    """Return a spec as a file name, with special characters replaced by "-"."""
    return re.sub(r"\W", "-", spec)


def drawn_specs(norm: type[RegisteredNorm]) -> list[str]:
    """Return the specs to draw, with small numbers; for joint cuts, also with strips and with groups that split channels."""
    shown = parse(example(norm)).arguments
    numbers = {name: value if name == "num_classes" else min(value, SMALL) for name, value in shown.items()}
    norm_spec = norm.named_spec(numbers)
    if any(isinstance(cut, JointCut) for cut in norm_spec.mean):
        return [f"{norm.name}:{groups}" for groups in (2, 12, 4)]
    return [str(norm_spec)]


def gallery_page(names: list[str]) -> str:
    """Return the page with the pictures of all norms."""
    lines = ["# Gallery of norms", "", "One page per norm: what it computes, when to use it, what it costs, who measured it."]
    lines += [f"{ONE_COLOR}; pictures have small numbers, such as `gn:2` for `gn:32`."]
    lines += [
        "A [spec](../guide/specs.md) can combine all of these.",
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *names,
        "```",
        "",
        "{.gallery}",
    ]
    for name in names:
        norm = REGISTRY[name]
        picture = f"![values that share a statistic of {name}]({file_name(drawn_specs(norm)[0])}.svg)"
        lines += [f"- [{picture}]({name}.md) [`{example(norm)}`]({name}.md) {summary(norm)}"]
    return "\n".join([*lines, ""])


def norm_page(name: str) -> str:
    """Return the page of a registered norm."""
    norm = REGISTRY[name]
    equations = formula(parse(example(norm), batch_size=8))
    parts = [f"# {norm.__name__} (`{name}`)", f"{summary(norm)}. {norm.paper}{_paper_link(norm.paper)}."]
    parts += [_pictures(norm), "## When to use it", _list(advise(norm))]
    parts += ["## What it computes", "```text\n" + "\n".join(equations) + "\n```"]
    if any("μ[" in line or "σ²[" in line for line in equations):
        symbols = "μ[s] and σ²[s] are the mean and the (biased) variance over all values of one color in the picture above"
        parts += [f"{symbols}, for the cut s."]
    if any("rms²[" in line for line in equations):
        parts += [
            "rms²[s] is the mean of x² over all values of one color in the picture above, for the cut s; no mean is subtracted."
        ]
    parts += [_counts(norm), "## Code", f"```python\n{code(norm)}```"]
    parts += ["## What it costs", cost(norm), "## Records", records(name)]
    return "\n\n".join(parts) + "\n"


def _paper_link(paper: str) -> str:
    key = re.search(r"\((\w+)\)|in (\w+) ", paper)
    name = (key[1] or key[2]) if key else ""
    return f" ([page of the paper](../papers/{name}.md))" if (ROOT / "docs" / "papers" / f"{name}.md").exists() else ""


def _pictures(norm: type[RegisteredNorm]) -> str:
    specs = drawn_specs(norm)
    pictures = [f"![values that share a statistic of {spec}]({file_name(spec)}.svg)" for spec in specs]
    drawn = f"{ONE_COLOR}. "
    drawn += f"Drawn as {', '.join(f'`{spec}`' for spec in specs)}. " if specs != [example(norm)] else ""
    command = f"`anynorm show {specs[0]} --svg FILE` or `anynorm.draw.cuts({specs[0]!r})` draws it."
    return "{.cuts}\n" + "\n".join(pictures) + f"\n\n{drawn}{command}"


def advise(norm: type[RegisteredNorm]) -> list[str]:
    """Return sentences on when to use a norm: the advice of its class, then consequences of its definition."""
    norm_spec = parse(example(norm), batch_size=8)
    pools = [cut.pools_samples for cut in norm_spec.mean + norm_spec.var]
    sentences = [norm.use] if norm.use else []
    if not any(pools):
        sentences.append("Statistics come from each sample: any batch size, the same in training and inference.")
    elif all(pools):
        sentences.append(
            "Training uses statistics of the batch, inference running statistics. If a model is good in train mode and bad in "
            "eval mode, see [Diagnostics](../guide/diagnose.md)."
        )
    else:
        sentences.append(
            "Some statistics come from the batch in training and are running statistics in inference; the others come from each "
            "sample."
        )
    sentences.append(advise_folding(norm))
    link = "[Conditions](../guide/specs.md#conditions)"
    if norm_spec.affine.num_domains:
        sentences.append(f"It needs the domain of each sample: {link}. Each domain has statistics of its own.")
    elif norm_spec.num_classes:
        sentences.append(f"It needs the class of each sample: {link}. All classes share the statistics.")
    if norm_spec.takes_style:
        sentences.append(f"It needs a style, an image's features or their mean and std: {link}.")
    if norm_spec.custom:
        sentences.append("It is a baseline outside the algebra: of suffixes, only `.none` can be added to its spec.")
    return sentences


def advise_folding(norm: type[RegisteredNorm]) -> str:
    """Return whether a norm can be folded into a convolution, and under which conditions."""
    layer = make(example(norm), CHANNELS)
    fold, reason = "[guide](../guide/deployment.md#fold)", layer.not_foldable_reason()
    if any(isinstance(cut, JointCut) for cut in layer.norm_spec.mean):
        return f"It folds into convolutions for inference ({fold}) if G, its number of groups, divides the number of channels."
    if reason is None and layer.takes_condition:
        kind, condition = ("domain", 1) if layer.norm_spec.affine.num_domains else ("class", 3)
        return f"It folds into convolutions for one chosen {kind}: `fold(model, x, condition={condition})` ({fold})."
    if reason is None:
        return f"It folds into convolutions for inference ({fold})."
    if layer.mean_weight is not None and not getattr(layer, "one_cut_per_channel", False):
        harden = "[`anynorm.harden`](../guide/surgery.md#freeze-merge-harden-sync-weight-decay)"
        return (
            f"After {harden}, layers in which `bn` has the largest weights, of mean and variance, fold ({fold}); others do not."
        )
    per_input = "come from each input" in reason
    return "It cannot be folded: statistics come from each input." if per_input else f"It cannot be folded: {reason}."


def _counts(norm: type[RegisteredNorm]) -> str:
    """Return a table of the norm and its variants with the number of parameters and statistics of each."""
    described = {entry["spec"]: entry for entry in list_norms()}
    lines = ["Cuts are written samples·channels·space. N, C, S: one part per sample, channel, position; 1: all together; another"]
    lines += [f"number: so many parts. For an input {'×'.join(map(str, SHAPE))}:", ""]
    lines += [
        "| spec | | [cuts](../glossary.md): samples·channels·space | parameters | statistics of a batch | running statistics |",
        "|---|---|---|---|---|---|",
    ]
    for spec in (example(norm), *norm.variants):
        entry, numbers = described[spec], count(make(spec, CHANNELS, device="meta"), SHAPE)
        batch = f"{numbers.num_statistics} = {numbers.statistic_terms}" if numbers.statistic_terms else "see the formula"
        parameters = f"{numbers.num_parameters} = {numbers.parameter_terms}"
        lines.append(
            f"| `{spec}` | {entry['description']} | {entry['cuts']} | {parameters} | {batch} | {numbers.num_running_statistics} |"
        )
    return "\n".join(lines)


def code(norm: type[RegisteredNorm]) -> str:
    """Return example code that makes the layer and passes a batch through it."""
    spec = example(norm)
    layer = make(spec, CHANNELS)
    lines = ["import torch", "", "import anynorm", "", f'norm = anynorm.make("{spec}", {CHANNELS})']
    lines += [f"print(norm)  # {layer}", f"x = torch.randn({', '.join(map(str, SHAPE))})"]
    if layer.norm_spec.takes_style:
        lines += [f"style = torch.randn({', '.join(map(str, SHAPE))})", "y = norm(x, style)"]
    elif layer.norm_spec.num_classes:
        kind = "domain" if layer.norm_spec.affine.num_domains else "class"
        lines += [f"labels = torch.arange(8) % {layer.norm_spec.num_classes}  # the {kind} of each sample", "y = norm(x, labels)"]
    else:
        lines += ["y = norm(x)"]
    return "\n".join([*lines, "print(y.shape)  # torch.Size([8, 64, 16, 16])", ""])


@lru_cache
def _benchmark() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "layers.json").read_text())
    return result


def cost(norm: type[RegisteredNorm]) -> str:
    """Return a table of the time of a norm relative to torch's layers: median and maximum over the shapes of the benchmark."""
    result = _benchmark()
    specs = [spec for spec in result["specs"] if parse(spec).class_name == norm.name or spec in norm.variants]
    if not specs:
        return "Not in the [benchmark of layers](../benchmarks/index.md)" + (
            ": `python benchmarks/baselines.py` measures it." if parse(example(norm), batch_size=8).custom else "."
        )
    rows = [row["seconds"]["forward + backward"] for row in result["rows"] if row["threads"] == 1]
    lines = [
        "Time of a training pass, forward + backward, on one thread, relative to that of a layer of torch (below 1: faster):",
        "",
    ]
    lines += ["| spec | " + " | ".join(f"{layer}: median | worst" for layer in ORDER) + " |", "|---" * (1 + 2 * len(ORDER)) + "|"]
    for spec in specs:
        cells = []
        for layer in ORDER:
            ratios = [row[spec] / row[layer] for row in rows if spec in row and layer in row]
            cells += [f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}"]
        lines.append(f"| `{spec}` | {' | '.join(cells)} |")
    machine = f"{result['hardware']}, torch {result['torch']}"
    lines += ["", f"{len(rows)} shapes in float32; {machine}. [All shapes](../benchmarks/index.md#layers)."]
    return "\n".join(lines)


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
