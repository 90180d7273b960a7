"""Specs: what is read, how it is written back, and what is said when it cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from anynorm.core.affine import PerChannel, PerClass, Style
from anynorm.core.cuts import ALL, Cut, JointCut
from anynorm.core.grammar import parse
from anynorm.core.mixing import Argmax, Softmax
from anynorm.errors import SpecError

BN, IN, LN, EN = Cut(1, ALL, 1), Cut(ALL, ALL, 1), Cut(ALL, 1, 1), Cut(1, 1, 1)


def test_the_parts_of_the_papers_norms_are_those_of_the_papers():
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
    ],
)
def test_a_spec_is_written_back_without_what_goes_without_saying(spec, written):
    assert str(parse(spec)) == written


ATOM = st.sampled_from(
    ["bn", "in", "ln", "gn:4", "en", "en:2", "bgn:16", "gbgn:2,4", "pn", "[1,3,1]", "[*,*,*]", "[1,24]", "[/4,2,1]"]
)
SIDE = st.lists(ATOM, min_size=1, max_size=3, unique=True).map("+".join)
ENDING = st.sampled_from(["", ".none", ".cc@3", ".sa@4", ".style", ".sastyle", ".dom@2", ".aux@2", ".saaux@5"])


@given(SIDE, st.none() | SIDE, st.booleans(), st.integers(1, 3), ENDING)
def test_every_spec_that_can_be_written_is_read_back_as_the_same_norm(mean, var, hard, groups, ending):
    several = "+" in mean + (var or "")
    weights = (f".groups:{groups}" if groups > 1 else "") + (".hard" if hard else "") if several else ""
    parts = parse((mean if var is None else f"{mean}/{var}") + weights + ending)
    assert parse(str(parts)) == parts
    assert parse(parts.canonical()) == parts


@given(st.text(alphabet="bnihslgec:@+-/.,[]*0123456789 ", max_size=12))
def test_any_other_text_is_refused_as_a_spec_error_or_read(text):
    try:
        parts = parse(text, batch_size=4, num_features=16, num_classes=2, num_domains=2, num_samples=2, num_groups=2)
    except SpecError as error:
        assert len(str(error)) > 30
    else:
        assert parse(str(parts)) == parts


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("swich", r"'swich': there is no norm called 'swich'\. Did you mean sn"),
        ("batchnorm", r"no norm called 'batchnorm'\. Did you mean bn"),
        ("zzz", r"no norm called 'zzz'\. Known: bn in ln gn"),
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
        ("[2,*,1]", r"is malformed"),
        ("gn:0", r"gn got num_groups=0; it takes a whole number from 1"),
        ("sabn@0", r"sabn got num_classes=0"),
        ("[1,0,1]", r"0 parts are none"),
        ("bn:4", r"bn does not take 4; it is written bn\."),
        ("hn:1,2", r"hn does not take 1,2; it is written hn or hn:NUM_GROUPS"),
        ("bn@3", r"bn does not take @3; it is written bn\."),
        ("gbgn:8", r"gbgn needs num_groups: write gbgn:NUM_SAMPLES,NUM_GROUPS, or give num_groups="),
        ("ccbn", r"ccbn needs num_classes: write ccbn@NUM_CLASSES, or give num_classes="),
        ("bgn", r"bgn without a number follows the batch size: give batch_size=…, or the number, as in bgn:16"),
        ("bn+bn", r"bn is there twice"),
        ("hn+sn", r"bn is there twice\. HN with SN's weights is bn/bn\+en or bn/bn\+ln\+in"),
        ("in-bn", r"bn is not there to take away"),
        ("bn-bn", r"no cut is left"),
        ("sabn@3+in", r"sabn@3 brings more than cuts; write that behind the cuts"),
        ("sn:2+gn:2/sn:3", r"brings more than cuts"),
        ("bn.foo", r"'\.foo' is no ending\. Known: \.groups:k \.hard \.none \.cc@k"),
        ("bn.sa", r"'\.sa' is no ending"),
        ("bn.none@3", r"'\.none@3' is no ending"),
        ("bn.hard", r"need several cuts to weigh"),
        ("hn.groups:2", r"need several cuts to weigh"),
        ("sn.hard:2", r"need several cuts|no ending"),
        ("sabn@3.cc@4", r"has two endings of a kind"),
        ("bn.none.none", r"has two endings of a kind"),
        ("sn.hard.hard", r"has two endings of a kind"),
        ("gn:" + "9" * 5000, r"is malformed"),
        (None, r"A spec is a string such as 'bn' or 'hn:32'; None came"),
        (7, r"7 came"),
    ],
)
def test_what_is_no_spec_says_what_would_be(spec, message):
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
        ("bgn:32", 48, {}, r"neither number divides the other.*Nearest usable: 24 or 48"),
        ("sn:5", 48, {}, r"5 channel groups cannot each have weights of their own: 48 channels .*Usable: 1 2 3 4"),
        ("bn", 0, {}, r"bn needs a channel count of at least 1; num_features=0 came"),
        ("bn", 8.0, {}, r"num_features=8\.0 came"),
        ("bgn", "8", {"batch_size": 4}, r"num_features='8' came"),
        (None, 8, {}, r"A spec is a string such as"),
        (8, "bn", {}, r"num_features='bn' came|A spec is a string"),
        ("sabm", 8, {"num_classes": 3}, r"Did you mean sabn"),
        ("bn", 8, {"num_groups": 4}, r"bn takes no option 'num_groups'\. It takes batch_size and torch's own"),
        ("hn", 8, {"groups": 4}, r"hn takes no option 'groups'\. It takes batch_size num_groups"),
        ("hn:4", 8, {"num_groups": 2}, r"hn was given num_groups twice: 4 in the spec, 2 as an option"),
        ("bgn", 8, {"batch_size": 0}, r"bgn got batch_size=0"),
        ("sabn@3", 8, {"affine": False}, r"sabn@3 is its affine"),
        ("bn", 8, {"eps": 32}, r"eps=32 is no small number to add to a variance"),
        ("gbgn:2,4.aux@2", 8, {}, r"gbgn:2,4 divides the batch and so do domains"),
        ("[1,1,*]", 8, {}, r"what is kept would depend on the image size"),
    ],
)
def test_options_that_do_not_fit_are_refused(spec, features, options, message):
    with pytest.raises(SpecError, match=message):
        anynorm.make(spec, features, **options)


def test_options_complete_what_a_spec_leaves_open():
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


@pytest.mark.parametrize(
    ("batch_size", "groups"),
    [(128, 512), (64, 256), (32, 128), (16, 64), (8, 16), (4, 2), (2, 1), (1, 1), (3, 1), (100, 256), (4096, 512)],
)
def test_bgn_follows_the_papers_rule(batch_size, groups):
    assert anynorm.make("bgn", 64, batch_size=batch_size).spec == f"bgn:{groups}"


@pytest.mark.parametrize(
    ("batch_size", "features", "groups"), [(32, 48, 96), (8, 20, 10), (16, 96, 48), (128, 3, 510), (8, 7, 14)]
)
def test_bgn_takes_the_nearest_usable_number_below_where_the_ruled_one_does_not_fit(batch_size, features, groups):
    assert anynorm.make("bgn", features, batch_size=batch_size).spec == f"bgn:{groups}"
