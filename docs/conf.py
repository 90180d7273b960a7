"""The documentation site: Sphinx, the theme furo, and MyST for Markdown.

Sphinx is the conservative choice. It reads docstrings by itself, builds without a network, checks every link, and its search
works on files without a server. mkdocs-material, the usual alternative, ends in May 2027.

`python -m docs.build` copies the pages of the repository and generates the others before Sphinx reads them with this file.
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

smartquotes_action = "D"  # dashes; quotes stay as they are written
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
suppress_warnings = ["ref.python"]  # classes of one name in two modules, as types in signatures
toc_object_entries = False  # with them, the navigation takes two thirds of the time of a build
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Options", "params_style")]
napoleon_use_ivar = True
napoleon_attr_annotations = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True


def setup(app: Sphinx) -> None:
    """Convert docstrings before napoleon reads their sections, and leave out members that are described in these sections."""
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)


def convert_docstring(app: Sphinx, kind: str, name: str, item: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Replace the lines of a docstring by reStructuredText; the options of a task have a table on its page."""
    lines[:] = to_rst(without_options(lines) if name.startswith("anynorm.tasks.") else lines)


def skip_fields(app: Sphinx, kind: str, name: str, item: object, skip: bool, options: object) -> bool | None:  # noqa: ARG001
    """Leave out the fields of named tuples: the section Attributes of their class has them."""
    return True if str(getattr(item, "__doc__", "")).startswith("Alias for field number") else None
