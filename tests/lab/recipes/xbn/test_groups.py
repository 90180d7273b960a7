"""A claim of xbn is made once, and claims about the same runs are counted once."""

import json

import pytest

from anynorm.lab.recipes.support.catalog import load_recipe, recipe_names
from anynorm.lab.recipes.support.claims import Level
from anynorm.lab.recipes.xbn import blocks, networks, strategies
from tests.lab.recipes.comparisons import comparisons

PRESETS = [(name, preset) for name in recipe_names() if name.startswith("xbn") for preset in load_recipe(name).presets]


def all_claims(name, preset):
    recipe = load_recipe(name)
    return comparisons(recipe.claims(recipe.presets[preset]))


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_claims_about_the_same_runs_have_the_same_group(name, preset):
    groups: dict[frozenset[str], list[str]] = {}
    for claim in all_claims(name, preset):
        runs = frozenset(json.dumps(cell, sort_keys=True) for side in claim.sides for cell in side.cells)
        groups.setdefault(runs, []).append(claim.group)
    for found in groups.values():
        assert len(found) == 1 or (len(set(found)) == 1 and found[0]), found


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_claims_about_layers_are_marked_and_none_may_fail_to_learn(name, preset):
    for claim in all_claims(name, preset):
        speaks_of_layers = "third" in claim.statement or "every layer" in claim.statement or "with depth" in claim.statement
        assert (claim.level is Level.LAYER) == (speaks_of_layers or "of a layer" in claim.statement), claim.statement
        assert not claim.loser_may_fail


@pytest.mark.parametrize(("preset", "claimed"), [("desk", ["LS", "MixUp", "all"]), ("night", ["all"])])
def test_the_cosine_schedule_is_claimed_by_xbn_blocks_where_that_has_it_too(preset, claimed):
    settings = strategies.PRESETS[preset]
    assert [claim.larger.cells[0]["strategy"] for claim in strategies.claims(settings)] == claimed
    assert "COS" in settings.strategies
    assert strategies.with_strategy(settings.training, "COS") == blocks.PRESETS[preset].training
    (same,) = [claim for claim in blocks.claims(blocks.PRESETS[preset]) if claim.statement == "P2 is more accurate than BN"]
    assert same.source == blocks.TABLE_1


def test_the_paper_preset_claims_the_cosine_schedule_and_resnet_50_once():
    assert len(strategies.claims(strategies.PRESETS["paper"])) == 4
    settings = networks.PRESETS["paper"]
    claimed = {side.cells[0]["network"] for claim in comparisons(networks.claims(settings)) for side in claim.sides}
    assert settings.networks.keys() - claimed == {"ResNet-50"}
