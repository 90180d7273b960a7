"""Build the documentation site: `make docs`, or `python -m docs.build`.

With the address of a host in ANYNORM_DOCS_URL, pages name their address there, and the site has a sitemap.xml.

The pages are Markdown files of the repository (docs/, records, benchmarks, changelog and contributing), pages generated from the
registry, the tasks and the records, and the API reference generated from docstrings. All pages are written to one folder, and
links that work on GitHub are changed to the path of their target on the site. Sphinx then reads this folder; warnings are errors.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

from docs.api_pages import api_pages
from docs.live_cuts import PLACE, html
from docs.norm_pages import draw_pictures, norm_pages
from docs.task_pages import task_pages

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "records/README.md": "records/index.md",
}
"""Pages outside docs/, with their paths on the site; links to the README become links to the home page."""
CONTENTS = {
    "Start": ["install", "tutorial", "questions", "migration"],
    "Norms": ["norms/index", "guide/specs", "guide/add_a_norm"],
    "Guides": [
        "guide/surgery",
        "guide/integrations",
        "guide/sharing",
        "guide/diagnose",
        "guide/domains",
        "guide/padded_sequences",
        "guide/compare",
        "guide/training",
        "guide/distributed",
        "guide/transforms",
        "guide/amp_and_gpu",
        "guide/deployment",
        "guide/large_images",
        "guide/tasks",
        "tasks/index",
        "guide/*",
    ],
    "Results": ["papers/index", "records/index", "benchmarks/index", "interop"],
    "Reference": ["api/index", "api/cli", "glossary", "changelog", "contributing", "security"],
}
"""The navigation: glob patterns of pages by section. Patterns without a match are ignored; each page is listed once."""
KEYWORDS = {
    "guide/add_a_norm.md": "custom, own, register",
    "guide/amp_and_gpu.md": "CUDA, half, autocast",
    "guide/transforms.md": "vmap, ensembles, per-sample gradients, jacobian, hessian, functional_call",
    "guide/distributed.md": "DDP, FSDP, SyncBatchNorm, GPUs",
    "guide/sharing.md": "save, load, save_pretrained, load_pretrained, push_to_hub, huggingface, hub, safetensors",
    "guide/padded_sequences.md": "mask, padding, lengths, ragged, variable, graphs, batch_index, PyG",
}
"""Words for the search that people use and a page may not; single words, as the search index needs them."""
ON_SITE = re.compile(r"<!-- site: (.*?) -->", re.S)
"""Text that is shown on the site but not on GitHub. It may have links to generated pages, with paths on the site."""
LINK = re.compile(r"(?P<before>!?\[(?:[^][]|\[[^]]*\])*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def site_path(path: str) -> str:
    """Return the path on the site of a file of the repository.

    >>> site_path("docs/papers/README.md"), site_path("records/README.md"), site_path("anynorm/lab/recipes/hn/grid.py")
    ('papers/index.md', 'records/index.md', 'anynorm/lab/recipes/hn/grid.py')
    """
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/").replace("README.md", "index.md")


def pages() -> list[str]:
    """Return the paths of the Markdown files in the repository that are pages of the site, except the README."""
    written = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*written, *(path for path in OUTSIDE if path != "README.md")]


def move_links(text: str, page: str) -> tuple[str, list[str]]:
    """Change the relative links of a page to the paths of their targets on the site.

    Args:
        text: the text of the page.
        page: the path of the page in the repository.

    Returns:
        The text with changed links, and the paths in the repository of all targets that are not pages, such as pictures.

    Raises:
        FileNotFoundError: if targets of links do not exist; the message names all of them.

    >>> move_links("[a](../../records/README.md#hn)", "docs/papers/hn.md")
    ('[a](../records/index.md#hn)', [])
    """
    folder, place = PurePosixPath(page).parent, PurePosixPath(site_path(page)).parent
    files, missing = [], []

    def move(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        target = os.path.normpath(folder / match["target"])
        if (ROOT / target).is_dir():
            target += "/README.md"
        if not (ROOT / target).is_file():
            missing.append(match["target"])
        elif not target.endswith(".md"):
            files.append(target)
        return f"{match['before']}{os.path.relpath(site_path(target), place)}{match['anchor'] or ''}"

    pieces = re.split(r"(^```.*?^```$|<!--.*?-->)", text, flags=re.M | re.S)
    moved = "".join(piece if piece.startswith(("```", "<!--")) else LINK.sub(move, piece) for piece in pieces)
    if missing:
        raise FileNotFoundError(f"{page} links to files that do not exist: {' '.join(missing)}")
    return moved, files


def stage(folder: Path) -> None:
    """Write all pages of the site, and the files that they link to, to a folder.

    Raises:
        FileNotFoundError: if targets of links do not exist; the message names all of them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    problems = []
    for page in pages():
        try:
            text, files = move_links((ROOT / page).read_text(), page)
        except FileNotFoundError as error:
            problems.append(str(error))
            continue
        text = ON_SITE.sub(r"\1", text).replace(PLACE, html())
        write(folder / site_path(page), add_keywords(text, KEYWORDS.get(site_path(page), "")))
        for file in files:
            copy = folder / site_path(file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copy)
    if problems:
        raise FileNotFoundError("\n".join(problems))
    for name, text in {**api_pages(), **norm_pages(), **task_pages()}.items():
        write(folder / name, text)
    draw_pictures(folder / "norms")
    contents = expand_contents(folder)
    append(folder / "index.md", *(toctree(names, title) for title, names in contents.items()))
    papers = sorted(path.stem for path in (folder / "papers").glob("*.md") if path.stem != "index")
    append(folder / "papers" / "index.md", toctree(papers))


def add_keywords(text: str, keywords: str) -> str:
    """Return a page with words that the search finds and that are not shown; without keywords, the page itself.

    >>> print(add_keywords("# Own norms", "custom"))
    ---
    myst:
      html_meta:
        "keywords lang=en": "custom"
    ---
    # Own norms
    """
    return f'---\nmyst:\n  html_meta:\n    "keywords lang=en": "{keywords}"\n---\n{text}' if keywords else text


def expand_contents(folder: Path) -> dict[str, list[str]]:
    """Return the existing pages of each section of the navigation, each page once."""
    contents: dict[str, list[str]] = {}
    listed: set[str] = set()
    for title, patterns in CONTENTS.items():
        paths = [path for pattern in patterns for path in sorted(folder.glob(f"{pattern}.*")) if path.suffix in (".md", ".rst")]
        names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
        contents[title] = [name for name in dict.fromkeys(names) if name not in listed]
        listed.update(names)
    return contents


def toctree(names: list[str], title: str = "") -> str:
    """Return the directive that adds pages to the navigation."""
    return "\n".join(["```{toctree}", ":hidden:", *([f":caption: {title}"] if title else []), "", *names, "```"])


def append(path: Path, *texts: str) -> None:
    """Add paragraphs to a page."""
    path.write_text("\n\n".join([path.read_text(), *texts, ""]))


def write(path: Path, text: str) -> None:
    """Write a page; create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(out: Path) -> int:
    """Build the site, and return the exit code of Sphinx.

    Args:
        out: the folder in which `source`, `cache` and `html` are written.
    """
    stage(out / "source")
    shutil.rmtree(out / "html", ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet", "--fresh-env"]
    command += ["--conf-dir", str(ROOT / "docs"), "--doctree-dir", str(out / "cache"), str(out / "source"), str(out / "html")]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


def main() -> int:
    """Build the site to the folder named on the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="folder to write to (default: build/docs)")
    out = parser.parse_args().out
    try:
        status = build(out)
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if status == 0:
        sys.stdout.write(f"Wrote {out / 'html' / 'index.html'} ({len(list((out / 'html').rglob('*.html')))} pages).\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
