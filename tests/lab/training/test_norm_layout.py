"""Layouts: texts at the edge, values inside."""

import pytest

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.lab.training.norm_layout import Alternating, Layout, XBNBlocks, split_norms
from anynorm.registry import parse


def test_a_layout_is_a_value():
    layout = Layout.parse("sn~bn;heads=xbn.p3.d2=gn:8;heads.mask=in")
    rest = Alternating((parse("sn"), parse("bn")))
    assert layout == Layout(rest, (("heads", XBNBlocks(parse("gn:8"), 3, 2)), ("heads.mask", Alternating((parse("in"),)))))
    assert all(isinstance(norm, NormSpec) for norm in layout.norms)
    assert [str(norm) for norm in layout.norms] == ["sn", "bn", "gn:8", "in"]
    assert Layout.parse(str(layout)) == layout
    assert Layout.parse("backbone=xbn=gn:64").rest == Alternating((parse("bn"),))


def test_the_layout_of_a_part_is_its_own_or_that_of_the_rest():
    layout = Layout.parse("sn;heads=gn:8")
    assert layout.of_submodule("heads") == Layout.parse("gn:8")
    assert layout.of_submodule("backbone") == Layout.parse("sn")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("gn:8.cc@2", "gn:8"), ("bn.aux@2~sabn@K", "bn~bn"), ("hn:4;a=xbn=saauxbn@3", "hn:4;a=xbn=bn"), ("bn.dom@2", "bn"),
     ("adain~sn.none", "adain~sn.none")],
)  # fmt: skip
def test_a_layout_without_classes_shares_affine_and_statistics(text, expected):
    assert Layout.parse(text, num_classes=2).without_classes() == Layout.parse(expected)


def test_k_is_the_number_of_classes():
    assert Layout.parse("ccbn@K~sabn@K", num_classes=10) == Layout.parse("ccbn@10~sabn@10")
    with pytest.raises(SpecError, match=r"@K in sabn@K stands for the number of classes .*Write a number: sabn@10"):
        Layout.parse("sabn@K")


def test_commas_inside_a_spec_do_not_separate_layouts():
    assert split_norms(" bn, gbgn:8,32 ,[1,*,1]/[*,9],sn;a=gn:4~bn,") == ["bn", "gbgn:8,32", "[1,*,1]/[*,9]", "sn;a=gn:4~bn"]
