"""The specs of tests that trace have every ingredient of all specs."""

from anynorm.layers.baselines import __name__ as baselines
from anynorm.layers.registered import REGISTRY
from tests.cover import COVER, cover, ingredients
from tests.helpers import ROWS


def all_ingredients(specs):
    return set().union(*map(ingredients, specs))


def test_the_cover_has_every_ingredient_with_a_quarter_of_the_specs():
    assert all_ingredients(COVER) == all_ingredients(ROWS)
    assert len(COVER) == 15
    assert len(ROWS) > 3 * len(COVER)
    assert set(COVER) < set(ROWS)


def test_the_cover_has_every_kind_of_ingredient():
    found = all_ingredients(COVER)
    assert {
        "one/all/one",
        "all/all/one",
        "all/one/one",
        "all/parts/one",
        "one/parts/one",
        "all/one/all",
    } < found  # bn in ln gn en pn
    assert {"one/all/parts", "ghost/parts/one", "different cuts of mean and variance"} < found  # bgn, gbgn, hn
    assert {"Softmax", "Argmax", "mixing weights per one of channels", "mixing weights per parts of channels"} < found
    assert {"PerChannel", "PerClass", "Style", "no affine", "sandwich", "domains"} < found
    outside = {cls.__module__ for cls in REGISTRY.values() if cls.__module__.startswith(baselines)}
    assert len(outside) >= 7
    assert outside < found


def test_a_spec_with_a_new_ingredient_is_added_to_the_cover():
    assert cover(["bn", "bn", "in"]) == ["bn", "in"]
    assert cover(["bn", "gn:4", "hn.sa@3"]) == ["hn.sa@3", "gn:4"]
