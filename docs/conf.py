"""Sphinx configuration of the documentation site, with the theme furo and MyST for Markdown.

Sphinx was chosen because it reads docstrings without plug-ins, builds without a network, checks every link, and its search works
on local files without a server. Support of mkdocs-material, the usual alternative, ends in May 2027.

`python -m docs.build` copies the pages of the repository and generates all other pages before it runs Sphinx with this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anynorm
from docs.docstrings import to_rst, without_options

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "anynorm"
author = "the authors of anynorm"
version = release = anynorm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["**/files/**"]

html_theme = "furo"
html_title = "anynorm"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

smartquotes_action = "D"  # convert dashes, but not quotes
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


def setup(app: Sphinx) -> None:
    """Register the conversion of docstrings, which must run before napoleon, and the filter of members."""
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)


def convert_docstring(app: Sphinx, kind: str, name: str, item: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Convert the lines of a docstring to reStructuredText, in place; the section Options of a task is a table on its page."""
    lines[:] = to_rst(without_options(lines) if name.startswith("anynorm.tasks.") else lines)


def skip_fields(app: Sphinx, kind: str, name: str, item: object, skip: bool, options: object) -> bool | None:  # noqa: ARG001
    """Leave out the fields of named tuples, which are described in the section Attributes or Args of the class."""
    return True if str(getattr(item, "__doc__", "")).startswith("Alias for field number") else None
