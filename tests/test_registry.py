"""The zoo: every name has a class with torch's argument names, and every class a spec."""

import functools
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY, GroupedNorm, RegisteredNorm
from anynorm.registry import parse
from tests.helpers import condition_for, data, same

CLASSES: list[tuple[Any, dict[str, int], str]] = [
    (anynorm.SwitchNorm, {}, "sn"),
    (anynorm.SwitchNorm, {"num_groups": 2}, "sn:2"),
    (anynorm.HeteroNorm, {}, "hn"),
    (anynorm.HeteroNorm, {"num_groups": 4}, "hn:4"),
    (anynorm.BatchGroupNorm, {"num_groups": 4}, "bgn:4"),
    (anynorm.BatchGroupNorm, {"batch_size": 4}, "bgn:2"),
    (anynorm.ExtendedNorm, {}, "en"),
    (anynorm.GeneralBatchGroupNorm, {"num_samples": 2, "num_groups": 4}, "gbgn:2,4"),
    (anynorm.PositionalNorm, {}, "pn"),
    (anynorm.ConditionalBatchNorm, {"num_classes": 3}, "ccbn@3"),
    (anynorm.SandwichBatchNorm, {"num_classes": 3}, "sabn@3"),
    (anynorm.AuxBatchNorm, {"num_domains": 2}, "auxbn@2"),
    (anynorm.SandwichAuxBatchNorm, {"num_domains": 2}, "saauxbn@2"),
    (anynorm.AdaIN, {}, "adain"),
    (anynorm.SandwichAdaIN, {}, "saadain"),
]


@pytest.mark.parametrize(("kind", "numbers", "spec"), CLASSES)
def test_a_named_class_is_the_norm_of_its_spec(kind, numbers, spec):
    torch.manual_seed(0)
    named = kind(8, eps=1e-3, momentum=0.2, **numbers)
    torch.manual_seed(0)
    made = anynorm.make(spec, 8, eps=1e-3, momentum=0.2)
    assert named.spec == made.spec == spec
    assert type(made).__name__ == kind.__name__
    assert (named.eps, named.norm_spec) == (made.eps, made.norm_spec)
    x = data(4, 8, 3, 3)
    same(named(x, condition_for(named, x)), made(x, condition_for(made, x)))
    if not named.norm_spec.num_classes:
        assert not kind(8, affine=False, **numbers).affine


def test_the_arguments_are_torchs_in_torchs_order_after_the_numbers_of_the_spec():
    theirs = [name for name in inspect.signature(nn.BatchNorm2d).parameters if name != "bias"]
    for row in REGISTRY.values():
        parameters = inspect.signature(row).parameters
        assert not any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters.values())
        assert {*row.arguments, *row.hyperparameters} <= set(parameters)
        assert list(parameters)[: 1 + len(row.arguments)] == ["num_features", *row.arguments]
        assert [name for name in parameters if name in theirs] == theirs
    assert list(inspect.signature(anynorm.SwitchNorm).parameters)[:8] == [
        "num_features", "num_groups", "eps", "momentum", "affine", "track_running_stats", "device", "dtype",
    ]  # fmt: skip


def test_every_method_of_the_papers_is_listed_by_an_example_with_its_paper():
    listed = {entry.spec: entry for entry in anynorm.zoo()}
    wanted = "bn in ln gn:32 en:32 bgn:512 gbgn:8,32 pn hn hn:32 sn sn:2 sn.hard bn/bn+en"
    wanted += " ccbn@10 sabn@10 auxbn@2 saauxbn@2 adain saadain"
    assert set(wanted.split()) <= set(listed)
    for entry in listed.values():
        assert entry.paper
        assert entry.summary
        assert isinstance(anynorm.make(entry.spec, 512), entry.norm)


def test_a_new_row_is_one_class():
    class MyNorm(GroupedNorm):
        """A new norm."""

        name, paper = "mynorm", "none"
        arguments = {"num_groups": 2}
        define = staticmethod(lambda num_groups: parse(f"bn/gn:{num_groups}"))

    try:
        norm = anynorm.make("mynorm:4", 8)
        assert isinstance(norm, MyNorm)
        assert norm.spec == "mynorm:4"
        assert norm.norm_spec == parse("bn/gn:4")
        assert any(entry.spec == "mynorm" for entry in anynorm.zoo())
        with pytest.raises(anynorm.SpecError, match=r"Other.name must be unique; 'mynorm' is MyNorm\. Choose another name"):
            type("Other", (RegisteredNorm,), {"name": "mynorm", "paper": "none"})
    finally:
        del REGISTRY["mynorm"]


def test_arguments_and_names_with_typing_errors_raise():
    with pytest.raises(anynorm.SpecError, match="gn takes no argument 'num_group'"):
        parse("gn", num_group=4)
    with pytest.raises(anynorm.SpecError, match=r"Other\.name must be a lowercase identifier, such as 'bn'; got 'MyNorm'"):
        type("Other", (RegisteredNorm,), {"name": "MyNorm", "paper": "none"})
    with pytest.raises(anynorm.SpecError, match="side must be 'mean' or 'var'; got 'std'"):
        anynorm.make("sn", 8).mixing_weights("std")


def test_specs_without_a_name_construct_plain_norms():
    assert type(anynorm.make("bn/bn+en", 8)) is Norm
    assert type(anynorm.make("sn.hard", 8)) is Norm
    assert repr(anynorm.make("bn/bn+en", 8)) == "Norm('bn/bn+en', 8, eps=1e-05, momentum=0.1)"
    assert repr(anynorm.make("bn", 8, track_running_stats=False)) == "BatchNorm('bn', 8, eps=1e-05, track_running_stats=False)"


def test_a_layer_function_makes_layers_and_can_be_pickled_and_overridden():
    norm_layer = pickle.loads(pickle.dumps(anynorm.layer("gn:8", eps=1e-3)))
    norm = norm_layer(32)
    assert (norm.spec, norm.num_features, norm.eps) == ("gn:8", 32, 1e-3)
    assert norm_layer(32, eps=1e-4, dtype=torch.float64).weight.dtype == torch.float64
    with pytest.raises(anynorm.SpecError, match="12 is not divisible by 8"):
        norm_layer(12)
    assert anynorm.layer("gn:8", groups="nearest")(12).spec == "gn:6"
    assert anynorm.layer("sabn", num_classes=3)(12).spec == "sabn@3"


def test_a_layer_function_survives_a_library_that_binds_its_keywords_again():
    """timm keeps the function and the keywords of a partial, and drops its positional arguments."""
    norm_layer = anynorm.layer("gn:4", affine=False)
    assert isinstance(norm_layer, functools.partial)
    assert functools.partial(norm_layer.func, **norm_layer.keywords)(8).spec == "gn:4.none"


def test_the_group_numbers_of_a_layer_function_are_exact_or_nearest():
    with pytest.raises(anynorm.SpecError, match="groups must be 'exact' or 'nearest'; got 'next'"):
        anynorm.layer("gn:8", groups="next")
