"""Different specs that must give the same numbers."""

import pytest
import torch

import anynorm
from tests.helpers import data, make, same

SAME = [
    ("gn:1", "ln"),
    ("gn:8", "in"),
    ("en:8", "bn"),
    ("en:1", "en"),
    ("bgn:1", "en"),
    ("bgn:4", "en:4"),
    ("bgn:8", "bn"),
    ("gbgn:4,2", "en:2"),
    ("gbgn:4,8", "bn"),
    ("gbgn:1,2", "gn:2"),
    ("gbgn:1,8", "in"),
    ("bn/bn", "bn"),
    ("sn/sn", "sn"),
    ("hn:8", "bn"),
    ("hn:2", "bn/en:2"),
    ("hn", "bn/bgn:1"),
    ("sn", "in+ln+bn"),
    ("sn:1", "sn"),
    ("sn:2", "in+ln+bn.groups:2"),
    ("sn-bn", "in+ln"),
    ("sn:2-bn", "in+ln.groups:2"),
    ("[1,*,1]", "bn"),
    ("[*,4,1]/[1,16]", "gn:4/bgn:16"),
    ("[/2,4,1]", "gbgn:2,4"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
@pytest.mark.parametrize("training", [True, False])
def test_these_two_specs_are_the_same_norm(one, other, training):
    a, b = make(one, channels=8), make(other, channels=8)
    x = data(4, 8, 4, 4)
    a(x), b(x)
    same(a.train(training)(x), b.train(training)(x))


SAME_FOR_THESE_CHANNELS_ONLY = ("gn:1", "gn:8", "en:8", "hn:8", "hn", "gbgn:4,2", "gbgn:4,8", "bgn:1", "bgn:4", "bgn:8")
SAME_EVERYWHERE = [pair for pair in SAME if pair[0] not in SAME_FOR_THESE_CHANNELS_ONLY and pair != ("gbgn:1,8", "in")] + [
    ("gn:1", "ln")
]


@pytest.mark.parametrize(("one", "other"), SAME_EVERYWHERE)
def test_specs_that_agree_for_any_number_of_channels_have_equal_definitions(one, other):
    assert anynorm.registry.parse(one) == anynorm.registry.parse(other)


def test_bn_of_one_sample_in_training_is_in():
    x = data(1, 8, 4, 4)
    same(anynorm.make("bn", 8)(x), anynorm.make("in", 8)(x))
    same(anynorm.make("en", 8)(x), anynorm.make("ln", 8)(x))
    same(anynorm.make("en:2", 8)(x), anynorm.make("gn:2", 8)(x))


def test_pn_of_vectors_is_ln_and_of_one_channel_maps_is_nothing_but_beta():
    same(anynorm.make("pn", 8)(data(4, 8)), anynorm.make("ln", 8)(data(4, 8)))
    same(anynorm.make("pn", 1).eval()(data(4, 1, 3)), torch.zeros(4, 1, 3))


@pytest.mark.parametrize(("k", "cut"), list(enumerate(["in", "ln", "bn"])))
@pytest.mark.parametrize("training", [True, False])
def test_sn_with_all_weight_on_one_cut_is_that_norm_and_so_is_hard_sn(k, cut, training):
    x = data(4, 8, 4, 4)
    soft, hard, alone = anynorm.make("sn", 8), anynorm.make("sn.hard", 8), anynorm.make(cut, 8)
    for norm in (soft, hard):
        with torch.no_grad():
            norm.mean_weight[k] = norm.var_weight[k] = 100.0
    for norm in (soft, hard, alone):
        norm(x)
    same(soft.train(training)(x), alone.train(training)(x))
    same(hard.train(training)(x), alone.train(training)(x))


def test_group_sn_with_one_cut_per_group_is_two_norms_side_by_side():
    x = data(4, 8, 4, 4)
    norm = anynorm.make("sn:2", 8)
    with torch.no_grad():
        for logits in (norm.mean_weight, norm.var_weight):
            logits[0, 0] = logits[1, 2] = 100.0
    same(norm(x), torch.cat([anynorm.make("in", 8)(x)[:, :4], anynorm.make("bn", 8)(x)[:, 4:]], dim=1))


@pytest.mark.parametrize(("sandwich", "plain"), [("sabn@3", "ccbn@3"), ("saauxbn@3", "auxbn@3"), ("hn:2.sa@3", "hn:2.cc@3")])
def test_a_merged_sandwich_gives_the_same_output_from_one_affine(sandwich, plain):
    norm = make(sandwich, channels=8)
    x, label = data(6, 8, 4, 4), torch.tensor([0, 1, 2, 2, 1, 0])
    norm(x, label)
    merged = norm.eval().merge()
    same(merged(x, label), norm(x, label))
    assert merged.weight is None
    assert {*merged.state_dict()} == {*make(plain, channels=8).state_dict()}
    assert anynorm.registry.parse(merged.spec) == merged.norm_spec
    if sandwich == "sabn@3":
        assert merged.norm_spec == anynorm.registry.parse("ccbn@3")


def test_merging_without_a_sandwich_raises():
    with pytest.raises(anynorm.SpecError, match=r"merge needs a shared affine followed by one per class .*got ccbn@3"):
        anynorm.make("ccbn@3", 8).merge()


def test_a_sandwich_at_its_start_is_a_conditional_bn():
    x, label = data(6, 8, 4, 4), torch.tensor([0, 1, 2, 2, 1, 0])
    sandwich, plain = anynorm.make("sabn@3", 8), anynorm.make("ccbn@3", 8)
    plain.load_state_dict({k: v for k, v in sandwich.state_dict().items() if k not in ("weight", "bias")})
    same(sandwich(x, label), plain(x, label))


def test_adain_to_an_images_own_style_is_the_image():
    x = data(3, 8, 4, 4)
    same(anynorm.make("adain", 8)(x, x), x)
    same(anynorm.make("saadain", 8)(x, x), x)


def test_a_style_given_as_features_or_as_moments_is_the_same():
    x, style = data(3, 8, 4, 4), data(3, 8, 5, 7, seed=3)
    mean, var = style.mean((2, 3)), style.var((2, 3), correction=0)
    norm = make("saadain", channels=8)
    same(norm(x, style), norm(x, (mean, (var + norm.eps).sqrt())))


def test_domains_that_all_samples_share_are_a_plain_bn():
    x = data(4, 8, 3, 3)
    same(anynorm.make("bn.dom@2", 8)(x, 1), anynorm.make("bn", 8)(x))


def test_sample_order_does_not_matter_to_norms_that_pool_the_batch():
    x = data(4, 8, 4, 4)
    order = torch.tensor([2, 0, 3, 1])
    for spec in ("bn", "hn:2", "sn", "bgn:16"):
        same(anynorm.make(spec, 8)(x)[order], anynorm.make(spec, 8)(x[order]))
