"""Sphinx configuration of the documentation site, with the theme furo and MyST for Markdown.

Sphinx was chosen because it reads docstrings without plug-ins, builds without a network, checks every link, and its search works
on local files without a server. Support of mkdocs-material, the usual alternative, ends in May 2027.

`python -m docs.build` copies the pages of the repository and generates all other pages before it runs Sphinx with this file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from docutils import nodes

import anynorm
from docs.docstrings import to_rst, without_options

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "anynorm"
author = "the anynorm authors"
version = release = anynorm.__version__
license_name, _, notice = (Path(__file__).parent.parent / "LICENSE").read_text().splitlines()[:3]
copyright = f"{notice.removeprefix('Copyright (c) ')}. {license_name}."  # Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["**/files/**"]

html_theme = "furo"
html_title = f"anynorm {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_baseurl = os.environ.get("ANYNORM_DOCS_URL", "")  # of a hosted site, such as https://example.org/anynorm/
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
pygments_dark_style = "github-dark"  # the theme's own style underlines the names of modules, as if they were links

smartquotes = False  # --option stays as it is written
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
suppress_warnings = ["ref.python"]  # ambiguous types in signatures: two modules have classes of the same name
toc_object_entries = False  # with object entries, the navigation takes two thirds of the build time
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Options", "params_style")]
napoleon_use_ivar = True
napoleon_attr_annotations = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

SHORT = 20
"""The most characters of a table's cell that is not wrapped, if it has a digit: "13.8 ± 3.5", "3 × 64 × 64"."""
COLUMNS = re.compile(r"^\S+(?: \S+)* {2,}\S.* {2,}\S", re.M)
"""A line of a printed table with three or more columns."""


def setup(app: Sphinx) -> None:
    """Connect the functions below; docstrings are converted before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("doctree-resolved", mark_up)
    app.connect("build-finished", write_sitemap)


def convert_docstring(app: Sphinx, kind: str, name: str, item: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Convert the lines of a docstring to reStructuredText, in place; the section Options of a task is a table on its page."""
    lines[:] = to_rst(without_options(lines) if name.startswith("anynorm.lab.tasks.") else lines)


def skip_fields(app: Sphinx, kind: str, name: str, item: object, skip: bool, options: object) -> bool | None:  # noqa: ARG001
    """Leave out the fields of named tuples, which are described in the section Attributes or Args of the class."""
    return True if str(getattr(item, "__doc__", "")).startswith("Alias for field number") else None


def shorten_defaults(
    app: Sphinx,  # noqa: ARG001
    kind: str,  # noqa: ARG001
    name: str,  # noqa: ARG001
    item: object,  # noqa: ARG001
    options: object,  # noqa: ARG001
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:
    """Write "..." for the default of a field that a function computes; Sphinx cannot read a signature with "<factory>"."""
    return (signature.replace("<factory>", "..."), returns) if signature and "<factory>" in signature else None


def mark_up(app: Sphinx, doctree: nodes.document, name: str) -> None:  # noqa: ARG001
    """Give short cells with digits and printed tables classes, by which site.css keeps their lines whole."""
    for cell in doctree.findall(nodes.entry):
        text = re.sub(r"<[^>]*>", "", cell.astext())
        if len(text) <= SHORT and any(character.isdigit() for character in text):
            cell["classes"].append("number")
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") in ("text", "console", "default") and len(COLUMNS.findall(block.astext())) >= 2:
            block["classes"].append("printed-table")
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":  # between the name and the description of an argument
            text.parent.replace(text, nodes.Text(" – "))


def write_sitemap(app: Sphinx, error: Exception | None) -> None:
    """Write sitemap.xml, the addresses of all pages, if the site is built for a host."""
    if error is not None or not app.config.html_baseurl:
        return
    names = sorted(path.relative_to(app.outdir).as_posix() for path in Path(app.outdir).rglob("*.html"))
    pages = [name for name in names if not name.startswith(("genindex", "search", "py-modindex", "_"))]
    host = app.config.html_baseurl.rstrip("/")
    lines = [f"  <url><loc>{escape(f'{host}/{name}')}</loc></url>" for name in pages]
    start = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    (Path(app.outdir) / "sitemap.xml").write_text("\n".join([start, *lines, "</urlset>", ""]), encoding="utf-8")
