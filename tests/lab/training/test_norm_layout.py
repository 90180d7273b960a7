"""Layouts: texts at the edge, values inside."""

import pytest
import torch
from torch import nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.training.norm_layout import Alternating, Layout, XBNBlocks, split_norms
from anynorm.registry import parse
from anynorm.surgery.find import find_norms


def test_a_layout_is_a_value():
    layout = Layout.parse("sn~bn;heads=xbn.p3.d2=gn:8;heads.mask=in")
    rest = Alternating((parse("sn"), parse("bn")))
    assert layout == Layout(rest, (("heads", XBNBlocks(parse("gn:8"), (3,), 2)), ("heads.mask", Alternating((parse("in"),)))))
    assert all(isinstance(norm, NormSpec) for norm in layout.norms)
    assert [str(norm) for norm in layout.norms] == ["sn", "bn", "gn:8", "in"]
    assert Layout.parse(str(layout)) == layout
    assert Layout.parse("backbone=xbn=gn:64").rest == Alternating((parse("bn"),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("xbn.stem=gn:64", XBNBlocks(parse("gn:64"), stem=True)),
     ("xbn.d4.stem=in.none", XBNBlocks(parse("in.none"), (2,), 4, True)),
     ("xbn.p3.p1=gw:64", XBNBlocks(parse("gw:64"), (1, 3)))],
)  # fmt: skip
def test_xbn_layouts_have_positions_distance_and_stem(text, expected):
    layout = Layout.parse(text)
    assert layout.rest == expected
    assert Layout.parse(str(layout)) == layout


def test_the_authors_networks_have_a_batch_free_stem_without_affine_for_in():
    shape = DataShape(3, 16, 16, 10)
    for text, num_replaced in (("xbn.stem=gn:64", 9), ("xbn.p1.p2.stem=gn:16", 17), ("xbn.d4.stem=in.none", 3), ("xbn=gw:16", 8)):
        network = Layout.parse(text).apply(build_model("resnet26", shape))
        replaced = [site for site in find_norms(network) if not isinstance(site.module, nn.BatchNorm2d)]
        assert len(replaced) == num_replaced, text
        assert (replaced[0].path == "0.1") == (".stem" in text)
        assert all((site.module.weight is None) == ("none" in text) for site in replaced if hasattr(site.module, "weight"))
        assert network(torch.randn(2, 3, 16, 16)).isfinite().all()


@pytest.mark.parametrize("text", ["xbn.p4=gn:8", "xbn.stem", "xbn.stem.d2=gn:8", "xbn.d0=gn:8"])
def test_invalid_xbn_layouts_are_refused(text):
    with pytest.raises(SpecError, match=r"an XBN layout must be .*Usable: xbn=gn:64"):
        Layout.parse(text)


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
