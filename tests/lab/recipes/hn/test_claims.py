"""The recipes of hn claim what the paper says, where its inventory lists it, and their settings are what they say."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import anynorm
from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.recipes.hn import caltech256, cifar100, grid, groups, imagenet, networks, sn, with_sn
from anynorm.lab.recipes.hn.fluctuation import recipe as fluctuation
from anynorm.lab.recipes.hn.pair_grid import BN, BN_LOSES, HN, Pair, PairGrid, controls
from anynorm.lab.recipes.hn.published_grids import FIG_2A, FIG_2B, FIG_3A, FIG_3B, published_accuracy
from anynorm.lab.recipes.support.claims import Check, Equivalent, Larger, Level
from anynorm.lab.recipes.support.controls import Learned
from anynorm.lab.recipes.support.learned import chance, learned
from anynorm.lab.recipes.support.norm_grid import cell_config
from anynorm.lab.recipes.support.norm_grid import measure as measure_norm
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord
from anynorm.lab.recipes.support.settings_json import from_json, to_json
from anynorm.lab.recipes.support.verdicts import judge
from tests.lab.recipes.comparisons import comparisons

MODULES = (caltech256, cifar100, fluctuation, grid, groups, imagenet, networks, sn, with_sn)
RECIPES = {module.RECIPE.name: module.RECIPE for module in MODULES}
ORIGIN = {"code": "c", "cpu": "p"}
INVENTORY = json.loads((Path(__file__).parents[4] / "docs" / "papers" / "hn.json").read_text())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_inventory_lists_every_place_of_a_claim_with_its_recipe(recipe):
    places = {
        claim.source.place
        for settings in recipe.presets.values()
        for claim in recipe.claims(settings)
        if claim.source.paper == "hn"
    }
    assert places == {entry["item"] for entry in INVENTORY if entry.get("recipe") == recipe.name}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_claims_are_about_cells_that_are_measured_and_statements_are_unique(recipe):
    for settings in recipe.presets.values():
        cells, claims = recipe.cells(settings), recipe.claims(settings)
        assert len({claim.statement for claim in claims}) == len(claims) > 0
        for claim in claims:
            sides = (claim.larger, claim.smaller) if isinstance(claim, Check) else claim.sides
            for wanted in [cell for side in sides for cell in side.cells]:
                assert sum(wanted.items() <= cell.items() for cell in cells) == settings.seeds
            if isinstance(claim, Larger) and claim.published is not None:
                assert claim.margin > 0, claim.statement


def test_figures_2_and_3_agree_in_all_pairs_that_both_have_but_one():
    pairs = [Pair(mean, std) for mean in ("bn", "en:32", "en") for std in ("bn", "en:32", "en")]
    for first, second in ((FIG_2A, FIG_3A), (FIG_2B, FIG_3B)):
        differing = [pair for pair in pairs if published_accuracy(first, pair) != published_accuracy(second, pair)]
        assert differing == [Pair("en:32", "bn")]  # the paper contradicts itself


def test_the_published_differences_are_those_of_the_text():
    claims = {claim.statement: claim for claim in comparisons(grid.claims(grid.PRESETS["paper"]))}
    loses = claims["(bn, bn) loses more points from batch 128 to 4 than (bn, en)"]
    assert (tuple(loses.published), loses.requires) == ((10.46, 0.25), (BN_LOSES,))
    assert tuple(claims["(in, ln) is more accurate than (in, in) (batch 128)"].published) == (93.33, 92.88)
    comparable = claims["(bn, en:32) at batch 4 is comparable to (bn, bn) at batch 128"]
    assert isinstance(comparable, Equivalent)
    assert tuple(comparable.published) == (95.04, 95.05)
    average = comparisons(sn.claims(sn.PRESETS["paper"]))[0]
    assert average.margin == pytest.approx((0.50 + 0.62 + 0.09 + 0.20 - 0.10 + 0.32 + 0.58) / 7, abs=0.01)


def test_what_the_paper_says_of_most_pairs_is_a_share_of_them():
    shares = [claim for claim in comparisons(grid.claims(grid.PRESETS["paper"])) if "most" in claim.statement]
    assert [tuple(claim.published) for claim in shares] == [(71.7, 50), (83.3, 50)]
    settings = grid.PRESETS["desk"]
    for claim in comparisons(grid.claims(settings)):
        if "most" in claim.statement:
            rows = synthetic_rows(settings, lambda pair, size: 50.0 + (pair.mean != pair.std) - size / 100)
            assert claim.sides[0].at(rows, 0) == 100
            worse = synthetic_rows(settings, lambda pair, size: 50.0 - (pair.mean != pair.std) + size / 100)
            assert claim.sides[0].at(worse, 0) == 0


def test_every_other_std_is_compared_with_that_of_bn_and_every_std_with_the_best():
    for preset in ("desk", "night", "paper"):
        settings = grid.PRESETS[preset]
        statements = {claim.statement for claim in grid.claims(settings)}
        large, small = settings.batch_sizes
        grouped = settings.norms[-1]
        for std in settings.norms[1:]:
            assert f"(bn, {std}) is more accurate than (bn, bn) (batch {small})" in statements
            assert std == grouped or f"(bn, {grouped}) is more accurate than (bn, {std}) (batch {small})" in statements
        for size in (large, small):
            assert f"(bn, en) is more accurate than (en, bn) (batch {size})" in statements


def test_night_measures_the_named_pairs_and_claims_nothing_about_others():
    settings = grid.PRESETS["night"]
    assert len(settings.pairs) == 13
    assert len(grid.RECIPE.cells(settings)) == 13 * 2 * 8
    assert not any("most" in claim.statement for claim in grid.claims(settings))
    assert from_json(PairGrid, json.loads(json.dumps(to_json(settings)))) == settings


@pytest.mark.parametrize(
    ("pair", "spec"),
    [(HN, "hn"), (Pair("bn", "en:8"), "hn:8"), (BN, "bn"), (Pair("in", "ln"), "in/ln"), (Pair("en", "bn"), "en/bn")],
)
def test_hn_has_one_name_in_all_recipes(pair, spec):
    assert pair.spec == spec
    anynorm.parse(spec)


def test_all_batch_sizes_have_the_same_steps_samples_and_learning_rate():
    settings = sn.PRESETS["night"]
    training = settings.training
    cells = [{"batch_size": size, "seed": 1} for size in settings.batch_sizes]
    configs = [training.complete(cell_config(settings, "hn", cell)) for cell in cells]
    assert {config.batch_size * config.grad_accum_steps for config in configs} == {training.samples_per_step}
    assert {config.lr for config in configs} == {training.config.lr}
    with pytest.raises(DataError, match=r"samples_per_step must be a multiple of batch_size × devices; got 30 and 4 × 1"):
        replace(training, samples_per_step=30).complete(replace(training.config, batch_size=4))


def test_a_norm_has_its_own_learning_rate(tmp_path):
    settings = sn.PRESETS["smoke"]
    training = replace(settings.training, lrs={"hn": 0.01}, base_batch_size=None)
    settings = replace(settings, training=training)
    rates = {
        norm: training.complete(cell_config(settings, norm, {"batch_size": 8, "seed": 0})).lr for norm in ("hn:8", "hn", "sn")
    }
    assert rates == {"hn:8": 0.01, "hn": 0.01, "sn": settings.training.config.lr}
    row = measure_norm(settings, {"norm": "hn", "batch_size": 8, "seed": 0}, tmp_path)
    assert 0 <= row["accuracy"] <= 100


def channels(model, width, size):
    network = build_model(model, DataShape(3, size, size, 10), width=width)
    return {module.num_features for module in network.modules() if hasattr(module, "num_features")}


@pytest.mark.parametrize("name", ["hn_caltech256", "hn_cifar100", "hn_grid", "hn_groups", "hn_imagenet"])
@pytest.mark.parametrize("preset", ["night", "paper"])
def test_groups_divide_the_channels_of_every_layer_and_are_fewer(name, preset):
    recipe = RECIPES[name]
    if preset not in recipe.presets:
        pytest.skip("the recipe has no such preset")
    settings = recipe.settings(preset)
    for norm in settings.norms:
        number = int(norm.partition(":")[2] or 1)
        for count in channels(settings.training.config.model, settings.training.config.width, 32):
            assert count % number == 0
            assert number < count


def synthetic_rows(settings, accuracy):
    """Return rows with an accuracy per pair and batch size, and noise of 0.01 points."""
    return [
        cell
        | {
            "accuracy": accuracy(Pair(cell["mean"], cell["std"]), cell["batch_size"]) + Random(str(cell)).gauss(0, 0.01),
            "train_accuracy": 90.0,
        }
        for cell in grid.RECIPE.cells(settings)
    ]


def verdicts_on(settings, rows):
    claims = comparisons(grid.claims(settings))
    return {each.claim.statement: each.verdict for each in judge(claims, controls(settings), rows, None)}


def test_the_papers_own_numbers_hold():
    settings = grid.PRESETS["night"]
    tables = {32: FIG_2A, 2: FIG_2B}
    verdicts = verdicts_on(settings, synthetic_rows(settings, lambda pair, size: published_accuracy(tables[size], pair)))
    assert set(verdicts.values()) <= {"holds", "equivalent"}
    assert verdicts["(bn, en) is more accurate than (bn, bn) (batch 2)"] == "holds"


def test_that_hn_repairs_bn_is_not_tested_where_bn_loses_nothing():
    settings = grid.PRESETS["night"]
    verdicts = verdicts_on(settings, synthetic_rows(settings, lambda pair, size: 95.0 if pair.mean == "bn" else 90.0))
    assert verdicts["(bn, en) is more accurate than (bn, bn) (batch 2)"] == "not a fair test"
    assert verdicts["(bn, bn) loses accuracy from batch 32 to 2"] != "not a fair test"
    assert verdicts["(bn, en) is more accurate than (ln, ln) (batch 2)"] == "holds"


@pytest.mark.parametrize(
    ("recipes", "pairs"),
    [((grid, groups), 6), ((caltech256, with_sn), 1)],
    ids=["hn_grid, hn_groups", "hn_caltech256, hn_with_sn"],
)
def test_claims_about_the_same_runs_in_two_recipes_have_one_group(recipes, pairs):
    first, second = ({claim.statement: claim for claim in each.RECIPE.claims(each.PRESETS["night"])} for each in recipes)
    both = [statement for statement in first if statement in second]
    assert len(both) == pairs
    for statement in both:
        assert first[statement].sides == second[statement].sides
        assert first[statement].group == second[statement].group != ""


def test_a_failed_training_counts_only_where_the_paper_has_it():
    claims = networks.claims(networks.PRESETS["paper"])
    failing = [claim.statement for claim in claims if isinstance(claim, Larger) and claim.loser_may_fail]
    assert failing == ["`bn` is more accurate than `ln` (network mobilenetv2 ×0.35)"]
    claims_at_desk = comparisons(networks.claims(networks.PRESETS["desk"]))
    desk = [claim for claim in claims_at_desk if "shufflenetv2 ×0.5" in claim.statement]
    assert desk
    assert all(claim.published is None for claim in desk)  # the paper has ×1.5


def test_claims_about_the_same_networks_on_both_sides_have_one_group():
    for recipe in RECIPES.values():
        for settings in recipe.presets.values():
            groups_of: dict[frozenset[str], list[str]] = {}
            for claim in comparisons(recipe.claims(settings)):
                if claim.level is Level.RUN and claim.source.paper:
                    cells = frozenset(str(sorted(side.cells, key=str)) for side in claim.sides)
                    groups_of.setdefault(cells, []).append(claim.group)
            for names in groups_of.values():
                assert len(names) == 1 or (len(set(names)) == 1 and names[0]), names


def test_closeness_and_averages_of_sn_and_hn_are_claims_of_ours():
    claims = comparisons(sn.claims(sn.PRESETS["night"]))
    assert [claim.source.paper for claim in claims if isinstance(claim, Larger)] == ["", "hn", "hn", "hn"]
    assert {claim.source.paper for claim in claims if isinstance(claim, Equivalent)} == {""}


def test_observations_of_fluctuation_are_claimed_for_each_layer_and_the_theorem_is_a_check():
    claims = fluctuation.RECIPE.claims(fluctuation.PAPER)
    checks = [claim for claim in claims if isinstance(claim, Check)]
    assert len(checks) == 4 * 4
    assert all("BN_mean" in check.statement for check in checks)
    third = [claim for claim in comparisons(claims) if claim.statement.endswith("BN_std fluctuates more than BN_mean")]
    assert len(third) == 4 * 4
    assert {claim.level for claim in comparisons(claims)} == {Level.LAYER}
    assert len({claim.group for claim in third}) == 4  # batch sizes × momenta


def test_the_observations_with_momentum_are_ours_and_the_others_the_papers():
    for claim in comparisons(fluctuation.RECIPE.claims(fluctuation.PAPER)):
        assert (claim.source.paper == "") == ("momentum 0.9" in claim.statement) == ("momentum 0.9" in claim.group)
    assert all(claim.source.paper for claim in comparisons(fluctuation.RECIPE.claims(fluctuation.NIGHT)))


def test_panels_of_figure_7_are_quoted_where_the_paper_names_them():
    claims = comparisons(fluctuation.RECIPE.claims(fluctuation.NIGHT))
    obvious = {claim.source.place for claim in claims if "obvious" in claim.source.quote}
    assert obvious == {"Fig. 7a", "Fig. 7e", "Fig. 7g"}
    dramatic = {claim.source.place: claim.statement for claim in claims if claim.statement.endswith("than BN_mean")}
    named = {place: statement for place, statement in dramatic.items() if place != "Fig. 6"}
    assert {place: statement.partition(":")[0] for place, statement in named.items()} == {
        "Fig. 7d": "layer 2, batch 4",
        "Fig. 7f": "layer 3, batch 4",
        "Fig. 7h": "layer 4, batch 4",
    }


def test_statements_about_fluctuation_differ_in_the_characters_that_a_forest_plot_shows():
    statements = [claim.statement for claim in fluctuation.RECIPE.claims(fluctuation.PAPER)]
    assert max(map(len, statements)) < 85
    compared = [claim.statement for claim in comparisons(fluctuation.RECIPE.claims(fluctuation.PAPER))]
    assert max(map(len, compared)) < 75


def test_the_night_of_fluctuation_is_controlled_by_training_accuracy():
    (control,) = fluctuation.RECIPE.controls(fluctuation.NIGHT)
    assert isinstance(control, Learned)
    assert control.at_least == 90
    assert not any(claim.requires for claim in comparisons(fluctuation.RECIPE.claims(fluctuation.NIGHT)))


def test_standardized_inputs_have_other_statistics_in_the_first_layer(tmp_path):
    cell = {"batch_size": 128, "momentum": 0.0, "seed": 0}
    rows = [
        fluctuation.measure(replace(fluctuation.SMOKE, standardize=standardize), cell, tmp_path) for standardize in (False, True)
    ]
    assert rows[1]["bn_std 1"] > 1.5 * rows[0]["bn_std 1"]
    assert 0 <= rows[0]["train_accuracy"] <= 100


def test_a_grid_of_some_pairs_is_tabulated_and_drawn_with_gaps(tmp_path):
    settings = grid.PRESETS["night"]
    rows = synthetic_rows(settings, lambda pair, size: 90.0 + len(pair.spec))
    cells = [MeasuredCell({name: row[name] for name in ("mean", "std", "batch_size", "seed")}, row, ORIGIN) for row in rows]
    record = RecipeRecord("hn_grid", "night", settings, cells=cells)
    tables = grid.RECIPE.tables(record)
    assert len(tables) == 2
    lines = {row["std \\ mean"]: row for row in tables[0]}
    assert lines["in"]["gn:8"] == ""
    assert lines["en"]["bn"].mean == pytest.approx(92, abs=0.05)
    assert [path.exists() for path in grid.RECIPE.plot(record, tmp_path / "grid")] == [True]


def test_chance_is_known_for_all_data_of_the_recipes():
    assert chance("cifar10@16") == 10
    assert chance("folder:/data/pets") == pytest.approx(2.7, abs=0.01)
    assert learned("stream:imagenet").at_least == 0.25
    assert learned("cifar10", 40.0).at_least == 40
    with pytest.raises(DataError, match="the number of classes of 'folder:birds' is not known"):
        chance("folder:birds")
