"""Generate one page per registered norm from its class, the benchmarks and the records."""

from __future__ import annotations

import json
import re
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Any

from anynorm.core import grammar
from anynorm.core.cuts import JointCut
from anynorm.core.spec import NormSpec
from anynorm.errors import AnynormError
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.plot import save_cuts
from anynorm.recipes.support.catalog import read_header
from anynorm.registry import make, parse, summary
from anynorm.show import count, formula, list_norms
from tools.markdown import anchor, recipe_heading

ROOT = Path(__file__).parent.parent
SMALL = 2
"""Maximum number of groups, samples per part, domains and modes in pictures."""
CHANNELS, SHAPE = 64, (8, 64, 16, 16)
"""Number of channels in examples, and the input shape for which statistics are counted."""
ORDER = ("nn.BatchNorm", "nn.GroupNorm")


def norm_pages() -> dict[str, str]:
    """Return the text of the gallery and of the page of each registered norm, by file name."""
    names = list(REGISTRY)
    return {"norms/index.md": gallery_page(names), **{f"norms/{name}.md": norm_page(name) for name in names}}


def draw_pictures(folder: Path) -> None:
    """Write the pictures of all pages as SVG files."""
    for norm in REGISTRY.values():
        for spec in drawn_specs(norm):
            save_cuts(spec, folder / f"{file_name(spec)}.svg", (4, 6, 4) if norm.name == "bgn" else None)


def file_name(spec: str) -> str:
    """Return a spec as a file name, with special characters replaced by "-"."""
    return re.sub(r"\W", "-", spec)


def drawn_specs(norm: type[RegisteredNorm]) -> list[str]:
    """Return the specs to draw, with small numbers; for joint cuts, also with strips and with groups that split channels."""
    shown = grammar.parse(example(norm), REGISTRY, {}).arguments
    numbers = {name: value if name == "num_classes" else min(value, SMALL) for name, value in shown.items()}
    norm_spec = norm.named_spec(numbers)
    if any(isinstance(cut, JointCut) for cut in norm_spec.mean):
        return [f"{norm.name}:{groups}" for groups in (2, 12, 4)]
    return [str(norm_spec)]


def example(norm: type[RegisteredNorm]) -> str:
    """Return the spec that is the example of a norm."""
    return norm.example or norm.name


def gallery_page(names: list[str]) -> str:
    """Return the page with the pictures of all norms."""
    lines = ["# Norms", "", "One page per norm: definition, when to use it, cost, and records that measured it."]
    lines += ["Values of one color share a statistic; pictures have small numbers, such as `gn:2` for `gn:32`."]
    lines += [
        "[Specs](../guide/specs.md) combines all of these.",
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
    spec, description = example(norm), summary(norm)
    parts = [f"# {spec}: {norm.__name__}", f"{description}. {norm.paper}{_paper_link(norm.paper)}."]
    parts += [_pictures(norm), "## When to use it", _list(advise(norm))]
    parts += ["## What it computes", "```text\n" + "\n".join(formula(parse(spec, batch_size=8))) + "\n```", _counts(norm)]
    parts += ["## Code", f"```python\n{code(norm)}```", "## What it costs", cost(norm), "## Records", records(name)]
    return "\n\n".join(parts) + "\n"


def _paper_link(paper: str) -> str:
    key = re.search(r"\((\w+)\)|in (\w+) ", paper)
    name = (key[1] or key[2]) if key else ""
    return f" ([page of the paper](../papers/{name}.md))" if (ROOT / "docs" / "papers" / f"{name}.md").exists() else ""


def _pictures(norm: type[RegisteredNorm]) -> str:
    specs = drawn_specs(norm)
    pictures = [f"![values that share a statistic of {spec}]({file_name(spec)}.svg)" for spec in specs]
    drawn = f"Drawn as {', '.join(f'`{spec}`' for spec in specs)}. " if specs != [example(norm)] else ""
    command = f"`anynorm show {specs[0]} --svg FILE` or `anynorm.plot.cuts({specs[0]!r})` draws it."
    return "{.cuts}\n" + "\n".join(pictures) + f"\n\n{drawn}{command}"


def advise(norm: type[RegisteredNorm]) -> list[str]:
    """Return sentences on when to use a norm: the advice of its class, then consequences of its definition."""
    norm_spec = parse(example(norm), batch_size=8)
    pools = [cut.pools_samples for cut in norm_spec.mean + norm_spec.var]
    sentences = [norm.use] if norm.use else []
    if not any(pools):
        sentences.append(
            "Statistics come from each sample: any batch size, the same in training and inference. It cannot be folded."
        )
    elif all(pools):
        fold = " It folds into convolutions for inference ([`fold`](../guide/surgery.md#deploy-fold))."
        sentences.append(
            "Training uses statistics of the batch, inference running statistics. If a model is good in train mode and bad in "
            f"eval mode, see [Diagnostics](../guide/diagnose.md).{'' if norm_spec.custom or _has_strips(norm_spec) else fold}"
        )
    else:
        sentences.append(
            "Some statistics come from the batch in training and are running statistics in inference; the others come from each "
            "sample. It cannot be folded."
        )
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


def _has_strips(norm_spec: NormSpec) -> bool:
    return any(cut.resolve(CHANNELS).space != 1 for cut in norm_spec.mean)


def _counts(norm: type[RegisteredNorm]) -> str:
    """Return a table of the norm and its variants with the number of parameters and statistics of each."""
    described = {entry["spec"]: entry for entry in list_norms()}
    lines = [f"For an input {'×'.join(map(str, SHAPE))}:", ""]
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
    specs = [spec for spec in result["specs"] if grammar.parse(spec, REGISTRY, {}).norm_class is norm or spec in norm.variants]
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


@lru_cache
def specs_of_records() -> dict[str, set[str]]:
    """Return the specs in the settings and rows of each record, by the file name of the record."""
    return {path.name: _find_specs(json.loads(path.read_text())) for path in sorted((ROOT / "records").glob("*.json"))}


def _find_specs(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(_find_specs(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_find_specs(item) for item in value))
    return {value} if isinstance(value, str) and _is_spec(value) else set()


@lru_cache
def _is_spec(text: str) -> bool:
    try:
        parse(text, batch_size=8)
    except (AnynormError, ValueError):
        return False
    return True


def records(name: str) -> str:
    """Return a table of the records that measured a norm, alone or as a part of another spec."""
    lines = []
    for file, specs in specs_of_records().items():
        used = sorted(spec for spec in specs if name in re.findall(r"[a-z]+", spec))
        if used:
            recipe, preset = file.split(".")[:2]
            header = read_header(recipe)
            shown = ", ".join(f"`{spec}`" for spec in used[:6]) + (", …" if len(used) > 6 else "")
            link = f"[`{recipe}`](../records/index.md#{anchor(recipe_heading(recipe))}), {preset}"
            lines.append(f"| {header.source} | {header.title} | {shown} | {link} |")
    if not lines:
        return "No record has measured it yet."
    presets = "`desk` is a setting of minutes on two cores, `paper` the published one ([Glossary](../glossary.md))."
    return "\n".join([presets, "", "| | measured | as | record |", "|---|---|---|---|", *lines])


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
