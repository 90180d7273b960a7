"""Generate the tables of benchmarks/README.md and of three pages of docs/ from benchmarks/results/*.json; print targets and aims.

    python benchmarks/report.py

The scripts layers, fused, model, startup, reference, baselines, stream, conditional and deployment write these files (`--json`);
`make bench` runs all of them and then this script. A section is left out if its file does not exist. A test fails if a page
differs from the text generated from the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sections
from aims import all_aims
from summary import aims_section, summary_section, targets_section
from targets import Results, all_targets

FOLDER = Path(__file__).parent
GUIDE = FOLDER.parent / "docs" / "guide"
QUESTIONS = FOLDER.parent / "docs" / "questions.md"
GUIDES = {"conditional": GUIDE / "generation.md", "deployment": GUIDE / "deployment.md"}
"""The guides that show the section of a results file, by the name of the file."""
START, END = "<!-- results -->", "<!-- end of results -->"
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "layers": ("Layers", sections.layers_section),
    "fused": ("Norms with addition and ReLU", sections.fused_section),
    "model": ("Networks", sections.model_section),
    "startup": ("Start of a process", sections.startup_section),
    "reference": ("Reference kernels", sections.reference_section),
    "baselines": ("Baselines outside the algebra", sections.baselines_section),
    "stream": ("Streamed images", sections.stream_section),
    "conditional": ("Conditional norms", sections.conditional_section),
    "deployment": ("Deployment", sections.deployment_section),
}


def read_results(folder: Path) -> Results:
    """Return the contents of the existing JSON files, by name."""
    paths = {name: folder / f"{name}.json" for name in SECTIONS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def report(results: Results) -> str:
    """Return the generated part of README.md: the summary, the targets, then one section per file."""
    targets = all_targets(results)
    parts = []
    if targets:
        tables = [summary_section(results), aims_section(all_aims(results)), targets_section(targets)]
        parts.append("## In short\n\n" + "\n".join(tables))
    for name, (title, section) in SECTIONS.items():
        if name in results:
            used = results[name]["kernels"]["reference" if name == "reference" else "cpu"]
            parts.append(f"## {title}\n\n{_environment(results[name])}; kernels: {used}.\n\n{section(results[name])}")
    return "\n".join(parts)


def insert(content: str, text: str) -> str:
    """Replace the content between the two markers of a text, and return the new text.

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


def guide_report(name: str, results: Results) -> str:
    """Return the generated part of a guide: the section of one file."""
    return f"{_environment(results[name])}.\n\n{SECTIONS[name][1](results[name])}"


def main() -> None:
    """Write the generated parts of README.md and of the guides, and print one line per target and per aim."""
    results = read_results(FOLDER / "results")
    pages = {FOLDER / "README.md": report(results), QUESTIONS: summary_section(results)} | {
        page: guide_report(name, results) for name, page in GUIDES.items()
    }
    for page, content in pages.items():
        page.write_text(insert(content, page.read_text()))
    for target in all_targets(results):
        print(target)
    for aim in all_aims(results):
        print(aim)


if __name__ == "__main__":
    main()
