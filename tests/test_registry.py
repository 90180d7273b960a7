"""The zoo: every name has a class with torch's argument names, and every class a spec."""

import ast
import functools
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.core.spec import NormSpec
from anynorm.draw.descriptions import formula
from anynorm.layers.norm import CustomNorm, Norm
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
    (anynorm.RMSNorm, {}, "rms"),
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
    theirs = list(inspect.signature(nn.BatchNorm2d).parameters)
    for row in REGISTRY.values():
        parameters = inspect.signature(row).parameters
        assert not any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters.values())
        assert {*row.arguments, *row.hyperparameters} <= set(parameters)
        assert list(parameters)[: 1 + len(row.arguments)] == ["num_features", *row.arguments]
        assert [name for name in parameters if name in theirs] == theirs
    assert list(inspect.signature(anynorm.SwitchNorm).parameters)[:8] == [
        "num_features", "num_groups", "eps", "momentum", "affine", "track_running_stats", "device", "dtype",
    ]  # fmt: skip


def test_the_options_are_written_four_times():
    """In `NormOptions`, `Norm`, `RegisteredNorm` and `make`; all other constructors take `**options`."""
    written = []
    for path in (Path(anynorm.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
            elif isinstance(node, ast.ClassDef):
                names = [getattr(each.target, "id", "") for each in node.body if isinstance(each, ast.AnnAssign)]
            if {"eps", "momentum", "track_running_stats", "dtype"} <= set(names):
                written.append(getattr(node, "name", ""))
    assert sorted(written) == ["NormOptions", "__init__", "__init__", "make"]


@pytest.mark.parametrize("spec", ["sn", "gn:4", "hn", "bn/en:4", "gw:4"])
def test_make_defines_a_norm_once(spec, monkeypatch):
    names: list[str] = []
    original = NormSpec.__post_init__

    def record(self):
        names.append(self.name)
        original(self)

    monkeypatch.setattr(NormSpec, "__post_init__", record)
    parse(spec)
    parsed = list(names)
    names.clear()
    anynorm.make(spec, 8)
    assert names == parsed
    names.clear()
    anynorm.make(parse(spec), 8)
    assert names == parsed


@pytest.mark.parametrize("spec", ["sn:2", "sn.none", "gw:4.none", "sabn@3", "bn/en:4", "bgn:4", "modenorm:3"])
def test_make_takes_a_definition(spec):
    norm = anynorm.make(parse(spec), 8, eps=1e-3)
    made = anynorm.make(spec, 8, eps=1e-3)
    assert type(norm) is type(made)
    assert repr(norm) == repr(made)
    assert norm.norm_spec == made.norm_spec
    assert anynorm.make("brn", 8, r_max=2.0).r_max == anynorm.make(parse("brn"), 8, r_max=2.0).r_max == 2
    with pytest.raises(anynorm.SpecError, match="takes no argument 'num_groups'"):
        anynorm.make(parse(spec), 8, num_groups=2)


@pytest.mark.parametrize(
    ("spec", "expected", "kind"),
    [
        ("gn", "gn:6", "GroupNorm"),
        ("hn:4", "hn:3", "HeteroNorm"),
        ("sn:4", "sn:3", "SwitchNorm"),
        ("gw:4.none", "gw:3.none", "GroupWhitening"),
        ("gn:4.cc@2", "gn:3.cc@2", "Norm"),
        ("sn:4.hard", "in+ln+bn.groups:3.hard", "Norm"),
        ("ln/bn+en:4", "ln/bn+en:3", "Norm"),
        ("gbgn:2,4/en", "gbgn:2,3/en", "Norm"),
        ("[*,4,1]", "gn:3", "Norm"),
        ("[1,4,2]", "[1,3,2]", "Norm"),
        ("bgn:16", "bgn:12", "BatchGroupNorm"),
        ("bn/bgn:4", "bn/bgn:3", "Norm"),
        ("in+bn", "in+bn", "Norm"),
        ("0/gn:4", "0/gn:3", "Norm"),
    ],
)
def test_the_nearest_groups_are_chosen_in_any_spec(spec, expected, kind):
    norm = anynorm.layer(spec, groups="nearest")(6)
    assert (norm.spec, type(norm).__name__) == (expected, kind)
    assert norm.norm_spec == parse(expected)


def test_the_order_of_torchs_group_norm_is_explained():
    with pytest.raises(anynorm.SpecError, match=r"must be at most num_features, 32; got 64.*write GroupNorm\(64, 32\)"):
        anynorm.GroupNorm(32, 64)
    with pytest.raises(anynorm.SpecError, match="gn:64 cuts 32 channels into 64 equal parts"):
        anynorm.make("gn:64", 32)


def test_a_subclass_may_have_a_constructor_of_its_own():
    class Scaled(RegisteredNorm):
        """A new norm."""

        name, paper = "scaled", "none"
        hyperparameters = {"scale": 2.0}
        define = staticmethod(lambda: parse("bn"))

        def __init__(self, num_features, *, scale=2.0, **options):
            super().__init__(num_features, **options)
            self.scale = scale

    try:
        assert anynorm.make("scaled", 8).scale == 2
        assert anynorm.make("scaled", 8, scale=3.0, eps=1e-3).scale == 3
        names = list(inspect.signature(Scaled).parameters)
        assert names[:3] == ["num_features", "scale", "eps"]
    finally:
        del REGISTRY["scaled"]


@pytest.mark.parametrize("norm_class", REGISTRY.values(), ids=str)
def test_the_docstring_of_a_norm_shows_its_equation(norm_class):
    """The equations of a norm of the algebra are those of its definition, with letters in place of numbers."""
    equations = norm_class.equations()
    assert any(line.startswith("y ") and "=" in line for line in equations)
    if issubclass(norm_class, CustomNorm):
        return
    numbers = {"num_groups": 7, "num_samples": 5} if norm_class.name != "sn" else {"num_groups": 1}
    values = {name: numbers.get(name, 3) for name in norm_class.arguments}
    lines = [line.replace(":5,7", ":m,g").replace(":7", ":g") for line in formula(norm_class.named_spec(values))]
    if len(lines) == 3:
        mean, var, y = (line.partition("= ")[2] for line in lines)
        lines = ["y = " + y.replace("mean", mean).replace("var", var)]
    assert equations == lines


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
