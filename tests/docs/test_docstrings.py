"""Docstrings become reStructuredText without warnings, and mean the same."""

import pytest
from docutils.core import publish_doctree
from docutils.utils import Reporter
from sphinx.ext.napoleon.docstring import GoogleDocstring

from docs.docstrings import to_rst

pytestmark = pytest.mark.docs


def convert(text):
    rst = str(GoogleDocstring(to_rst(text.split("\n"))))  # as the site does
    return rst, publish_doctree(
        rst.replace(":py:obj:", ""),
        settings_overrides={"report_level": Reporter.WARNING_LEVEL, "warning_stream": "", "docinfo_xform": False},
    )


@pytest.mark.parametrize(
    "text",
    [
        "Return `x`.",
        "y = a*b, *args, **kwargs, |x|, name_ and `code`s.",
        "Set:\n\n    a * b\n    `c`",
        "Set:\n    a * b\nThen.",
        "one    two\nthree    four",
        "- item `a`\n  with a second line\n- another",
        "Args:\n    x: a `b`.\n    y: c,\n        d.\n\nReturns:\n    The sum.",
        "Text.\n\n>>> f(`x`)\n1\n\nText.",
        "A backslash \\ and a single ` backtick.",
        "Over `two\nlines` of code.",
        "Names:\n\n    a        see `b`    c\n    d        e",
        "Names:\n\n    a        see `b`\n    c d      * and |x|,\n             `e`",
        "Steps:\n\n    1. one `a`\n    2. two",
    ],
)
def test_docstrings_are_valid_after_conversion(text):
    rst, document = convert(text)
    assert not list(document.findall(lambda node: node.tagname == "system_message")), rst
    assert not list(document.findall(lambda node: node.tagname == "problematic")), rst


def literals(document):
    return [node.astext() for node in document.findall(lambda node: node.tagname in ("literal", "literal_block"))]


def test_code_and_formulas_are_literal_and_marks_of_text_are_kept():
    _, document = convert("Return `x * y` of *args and a_:\n\n    x * y_ + |z|\n\nThen `b`.")
    assert literals(document) == ["x * y", "x * y_ + |z|", "b"]
    assert "of *args and a_:" in document.astext()


def test_lines_in_columns_are_a_table():
    _, document = convert("bn    one per channel\nln    one per sample")
    assert literals(document) == ["bn    one per channel\nln    one per sample"]


def test_lines_in_columns_with_code_are_a_table_with_that_code():
    _, document = convert(
        "    name    files                     masks\n    coco    one, see `coco`           yes\n            and more\n"
    )
    entries = [node.astext() for node in document.findall(lambda node: node.tagname == "entry")]
    assert entries == ["name", "files", "masks", "coco", "one, see coco and more", "yes"]
    assert literals(document) == ["coco"]


def test_formulas_have_no_backticks():
    assert literals(convert("Set:\n\n    a = `b` + c")[1]) == ["a = b + c"]


def test_settings_below_an_argument_are_a_list():
    rst = to_rst(
        [
            "Args:",
            "    config: the run. Its options are",
            "",
            "        a: one",
            "            and more.",
            "        b: two",
            "",
            "    c: three",
        ]
    )
    assert rst == [
        "Args:",
        "    config: the run. Its options are",
        "",
        "        - a: one",
        "          and more.",
        "        - b: two",
        "",
        "    c: three",
    ]


def test_names_of_anynorm_are_links():
    assert to_rst(["See `anynorm.make` and `make`."]) == ["See :py:obj:`anynorm.make` and ``make``."]
