"""Specs: parsing, formatting, and the messages for text that is not a spec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Style
from anynorm.core.cuts import ALL, Cut, JointCut
from anynorm.core.mixing import Argmax, Softmax
from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.registry import parse

BN, IN, LN, EN = Cut(1, ALL, 1), Cut(ALL, ALL, 1), Cut(ALL, 1, 1), Cut(1, 1, 1)


def test_named_norms_have_the_cuts_and_affines_of_their_papers():
    assert parse("bn").mean == parse("bn").var == (BN,)
    assert parse("gn:8").mean == (Cut(ALL, 8, 1),)
    assert parse("pn").mean == (Cut(ALL, 1, ALL),)
    assert parse("bgn:512").mean == (JointCut(512),)
    assert parse("gbgn:8,32").mean == (Cut(ALL, 32, 1, samples_per_part=8),)
    assert (parse("hn").mean, parse("hn").var) == ((BN,), (EN,))
    assert (parse("sn").mean, parse("sn").var, parse("sn").mixing) == ((IN, LN, BN), (IN, LN, BN), Softmax(1))
    assert parse("sn:2.hard").mixing == parse("sn.hard.groups:2").mixing == Argmax(2)
    assert (parse("bn/bn+ln+in").mean, parse("bn/bn+ln+in").var) == ((BN,), (BN, LN, IN))
    assert parse("ccbn@10").affine.stages == (PerClass(10),)
    assert parse("sabn@10").affine.stages == (PerChannel(), PerClass(10))
    assert (parse("auxbn@2").affine.stages, parse("auxbn@2").affine.num_domains) == ((PerClass(2),), 2)
    assert (parse("saauxbn@2").affine.stages, parse("saauxbn@2").affine.num_domains) == ((PerChannel(), PerClass(2)), 2)
    assert parse("adain").affine.stages == (Style(),)
    assert parse("saadain").affine.stages == (PerChannel(), Style())
    assert parse("bn.none").affine.stages == ()
    assert (parse("rms").mean, parse("rms").var) == ((), (Cut(ALL, 1, ALL),))
    assert parse("rms").affine.stages == parse("bn.nobias").affine.stages == (PerChannelScale(),)
    assert (parse("0/bn+ln").mean, parse("0/bn+ln").var) == ((), (BN, LN))
    assert parse("0/hn:2").var == parse("hn:2").var
    assert parse("0/sn:2") == parse("0/in+ln+bn.groups:2")


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        (" HN:32 ", "hn:32"),
        ("en:1", "en"),
        ("sn:1", "sn"),
        ("gn:32", "gn:32"),
        ("gn", "gn:32"),
        ("bn/en:4.sa@3", "bn/en:4.sa@3"),
        ("[1,*,1]/en", "[1,*,1]/en"),
        ("sn-bn", "sn-bn"),
        (" 0/PN ", "0/pn"),
        ("0/gn", "0/gn:32"),
        ("0/bn+ln.hard", "0/bn+ln.hard"),
        ("rms.none", "rms.none"),
        ("rms.sa@3", "rms.sa@3"),
    ],
)
def test_a_spec_is_formatted_without_default_numbers(spec, written):
    assert str(parse(spec)) == written


ATOM = st.sampled_from(
    ["bn", "in", "ln", "gn:4", "en", "en:2", "bgn:16", "gbgn:2,4", "pn", "[1,3,1]", "[*,*,*]", "[1,24]", "[/4,2,1]"]
)
SIDE = st.lists(ATOM, min_size=1, max_size=3, unique=True).map("+".join)
ENDING = st.sampled_from(["", ".none", ".nobias", ".cc@3", ".sa@4", ".style", ".sastyle", ".dom@2", ".aux@2", ".saaux@5"])


@given(SIDE | st.just("0"), st.none() | SIDE, st.booleans(), st.integers(1, 3), ENDING)
def test_parsing_a_formatted_spec_gives_the_same_norm(mean, var, hard, groups, ending):
    var = "bn+ln" if mean == "0" and var is None else var
    several = "+" in mean + (var or "")
    weights = (f".groups:{groups}" if groups > 1 else "") + (".hard" if hard else "") if several else ""
    parts = parse((mean if var is None else f"{mean}/{var}") + weights + ending)
    assert parse(str(parts)) == parts
    assert parse(parts.canonical()) == parts


@given(st.text(alphabet="bnihslgec:@+-/.,[]*0123456789 ", max_size=12) | st.text(alphabet="0bniln+-/.", max_size=8))
def test_any_text_is_parsed_or_raises_a_spec_error(text):
    try:
        parts = parse(text, batch_size=4, num_features=16, num_classes=2, num_domains=2, num_samples=2, num_groups=2)
    except SpecError as error:
        assert len(str(error)) > 30
    else:
        assert parse(str(parts)) == parts


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("swich", r"'swich': unknown norm 'swich'\. Did you mean sn"),
        ("batchnorm", r"unknown norm 'batchnorm'\. Did you mean bn"),
        ("zzz", r"unknown norm 'zzz'\. Known: bn in ln gn"),
        ("sabm@10", r"Did you mean sabn"),
        ("", r"'' is malformed\. A spec is a name \(bn, hn:32, sabn@10\)"),
        ("bn//en", r"is malformed"),
        ("bn/en/in", r"is malformed"),
        ("bn+", r"is malformed"),
        ("+bn", r"is malformed"),
        ("bn en", r"is malformed"),
        ("gn:", r"is malformed"),
        ("gn:-1", r"is malformed"),
        ("gn:x", r"is malformed"),
        ("[1,2", r"is malformed"),
        ("[2,*,1]", r"\[2,\*,1\] is malformed\. A cut is \[samples,channels,space\]"),
        ("gn:0", r"num_groups of gn must be an integer of at least 1; got 0"),
        ("sabn@0", r"num_classes of sabn must be an integer of at least 1; got 0"),
        ("[1,0,1]", r"numbers must be at least 1; got 0"),
        ("bn:4", r"bn:4 has too many numbers: write bn\."),
        ("hn:1,2", r"hn:1,2 has too many numbers: write hn or hn:NUM_GROUPS\."),
        ("bn@3", r"bn@3 has too many numbers: write bn\."),
        ("gbgn:8", r"gbgn needs num_groups: write gbgn:NUM_SAMPLES,NUM_GROUPS, or pass num_groups="),
        ("ccbn", r"ccbn needs num_classes: write ccbn@NUM_CLASSES, or pass num_classes="),
        (
            "bgn",
            r"bgn without a number needs the batch size: pass batch_size=…, or write the number of groups, as in bgn:16",
        ),
        ("bn+bn", r"contains bn twice; each cut may occur once per side"),
        ("hn+sn", r"contains bn twice; .* HN with SN's mixing is bn/bn\+en or bn/bn\+ln\+in"),
        ("HN+SN", r"HN with SN's mixing"),
        ("in-bn", r"removes bn, which is not among the cuts before it"),
        ("bn-bn", r"leaves no cut"),
        ("sabn@3+in", r"sabn@3 has more than cuts, so it cannot be combined.*Write the rest as a suffix"),
        ("sn:2+gn:2/sn:3", r"has more than cuts"),
        ("bn.foo", r"unknown suffix '\.foo'\. Known: \.groups:k \.hard \.none \.nobias \.cc@k"),
        ("bn.sa", r"\.sa needs a number of classes or domains, as in '\.sa@10'"),
        ("sn:2.groups:4", r"\.groups:4 is the second of its kind"),
        ("bn.none@3", r"unknown suffix '\.none@3'"),
        ("bn.hard", r"need several cuts to mix"),
        ("hn.groups:2", r"need several cuts to mix"),
        ("sn.hard:2", r"write \.groups with a number and \.hard without"),
        ("sabn@3.cc@4", r"one affine suffix; \.cc@4 is the second of its kind"),
        ("bn.none.none", r"\.none is the second of its kind"),
        ("sn.hard.hard", r"\.hard is the second of its kind"),
        ("gn:" + "9" * 5000, r"is malformed"),
        ("0", r"'0': 0 must be the whole side of the mean, as in '0/pn' or '0/bn\+ln'\. A variance needs cuts"),
        ("bn/0", r"'bn/0': 0 must be the whole side of the mean"),
        ("0/0", r"'0/0': 0 must be the whole side of the mean"),
        ("0+bn/in", r"'0\+bn/in': 0 must be .* and 0 cannot be mixed with cuts\."),
        ("sn-0", r"'sn-0': 0 must be the whole side"),
        ("bn+0/in", r"'bn\+0/in': 0 must be the whole side"),
        ("0/bn+0", r"'0/bn\+0': 0 must be the whole side"),
        ("0/", r"is malformed"),
        ("0/bn/in", r"is malformed"),
        ("00/bn", r"must be the whole side"),
        ("0/bn-bn", r"leaves no cut"),
        ("0/bn.hard", r"need several cuts to mix"),
        ("0/rms", r"rms has more than cuts"),
        ("rms/bn", r"rms has more than cuts"),
        ("rms+bn", r"'rms\+bn': 0 must be the whole side of the mean"),
        ("0/modenorm:2", r"modenorm:2 cannot be combined with other terms"),
        ("bn.nobias.none", r"\.none is the second of its kind"),
        ("brn.nobias", r"brn takes no suffix except \.none; got \.nobias"),
        (None, r"A spec must be a string such as 'bn' or 'hn:32'; got None"),
        (7, r"got 7"),
    ],
)
def test_an_invalid_spec_raises_an_error_with_a_hint(spec, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse(spec)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("spec", "features", "options", "message"),
    [
        (
            "gn:32",
            48,
            {},
            r"gn:32 cuts 48 channels into 32 equal parts; 48 is not divisible by 32\. Usable: 1 2 3 4 6 8 12 16 24 48\.",
        ),
        (
            "sn:5",
            48,
            {},
            r"mixing weights of 5 channel groups need a channel count divisible by 5; got 48 channels\. Usable: 1 2 3 4",
        ),
        ("bn", 0, {}, r"num_features of bn must be an integer of at least 1; got 0"),
        ("bn", 8.0, {}, r"must be an integer of at least 1; got 8\.0"),
        ("bgn", "8", {"batch_size": 4}, r"must be an integer of at least 1; got '8'"),
        (None, 8, {}, r"A spec must be a string such as"),
        (8, "bn", {}, r"got 8\. The spec comes first: make\('bn', 8\)\."),
        ("sabm", 8, {"num_classes": 3}, r"Did you mean sabn"),
        ("bn", 8, {"num_groups": 4}, r"bn takes no argument 'num_groups'\. Usable: batch_size, and those of torch's layers"),
        ("hn", 8, {"groups": 4}, r"hn takes no argument 'groups'\. Usable: batch_size num_groups"),
        ("hn:4", 8, {"num_groups": 2}, r"hn got num_groups twice: 4 in the spec and 2 as an argument"),
        ("bgn", 8, {"batch_size": 0}, r"batch_size of bgn must be an integer of at least 1; got 0"),
        ("sabn@3", 8, {"affine": False}, r"sabn@3 requires affine=True"),
        (
            "sabn@3",
            8,
            {"bias": False},
            r"sabn@3 requires bias=True: only an affine per channel of a norm made of cuts can do without β",
        ),
        ("brn", 8, {"bias": False}, r"brn requires bias=True"),
        ("adain", 8, {"bias": False}, r"adain requires bias=True"),
        (NormSpec((BN,), ()), 8, {}, r"needs at least one cut of the variance; got none\. Only the mean can be 0, as in '0/pn'"),
        ("ln.dom@3", 8, {}, r"no cut of this norm pools samples\. Use \.cc@K"),
        ("gbgn:2,4.aux@2", 8, {}, r"gbgn:2,4 divides the batch, and so do domains"),
        ("[1,1,*]", 8, {}, r"its running statistics would depend on the image size"),
    ],
)
def test_arguments_that_do_not_fit_raise_an_error(spec, features, options, message):
    with pytest.raises(SpecError, match=message):
        anynorm.make(spec, features, **options)


def test_arguments_may_be_any_integer_type_but_not_bool():
    assert anynorm.make("gn", 8, num_groups=np.int64(4)).spec == "gn:4"
    with pytest.raises(SpecError, match="batch_size of bgn must be an integer of at least 1; got True"):
        anynorm.make("bgn", 8, batch_size=True)


def test_arguments_complete_a_spec():
    assert anynorm.make("hn", 8, num_groups=4).spec == "hn:4"
    assert anynorm.make("sabn", 8, num_classes=3).spec == "sabn@3"
    assert anynorm.make("auxbn", 8, num_domains=2).spec == "auxbn@2"
    assert anynorm.make("gbgn", 8, num_samples=2, num_groups=4).spec == "gbgn:2,4"
    assert anynorm.make("gn/en", 8, num_groups=4).spec == "gn:4/en:4"
    assert anynorm.make("bn", 8, batch_size=4).spec == "bn"
    assert anynorm.make("adain", 8, affine=False).spec == "adain"
    assert anynorm.make("saadain", 8, affine=False).spec == "in.style"
    assert anynorm.make("hn:4", 8, affine=False).spec == "hn:4.none"
    assert anynorm.make("bn.none", 8, affine=False).spec == "bn.none"
    assert anynorm.make("auxbn@2", 8, affine=False).spec == "bn.domnone@2"
    assert anynorm.make("rms", 8, affine=False).spec == "rms.none"
    assert anynorm.make("rms", 8, bias=False).spec == "rms"
    assert anynorm.make("hn:4", 8, bias=False).spec == "hn:4.nobias"
    assert anynorm.make("hn:4.nobias", 8, affine=False).spec == "bn/en:4.none"
    assert anynorm.make("bn.none", 8, bias=False).spec == "bn.none"
    assert anynorm.make("bn", 8, affine=False, bias=False).spec == "bn.none"


@pytest.mark.parametrize(
    ("batch_size", "groups"),
    [(128, 512), (64, 256), (32, 128), (16, 64), (8, 16), (4, 2), (2, 1), (1, 1), (3, 1), (100, 256), (4096, 512)],
)
def test_bgn_follows_the_papers_rule(batch_size, groups):
    assert anynorm.make("bgn", 64, batch_size=batch_size).spec == f"bgn:{groups}"


@pytest.mark.parametrize(
    ("batch_size", "features", "groups"), [(32, 48, 96), (8, 20, 10), (16, 96, 48), (128, 3, 510), (8, 7, 14)]
)
def test_bgn_takes_the_nearest_usable_number_of_groups_below_the_papers(batch_size, features, groups):
    assert anynorm.make("bgn", features, batch_size=batch_size).spec == f"bgn:{groups}"
