"""The networks of the xbn recipes are those of the authors, and recipes share their runs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.recipes.support.catalog import load_recipe
from anynorm.lab.recipes.support.runs import make_config
from anynorm.lab.recipes.support.verdicts import NOT_FAIR, judge
from anynorm.lab.recipes.xbn import blocks, networks, strategies
from anynorm.lab.recipes.xbn.perturbation import recipe as perturbation
from anynorm.lab.recipes.xbn.trained import RESNET29, RESNET56, RESNEXT29, measure_trained
from anynorm.lab.training.norm_layout import Layout, XBNBlocks
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import find_norms
from tests.lab.recipes.comparisons import comparisons


def blocks_of(norm):
    """Return the blocks of a layout."""
    rest = Layout.parse(norm).rest
    assert isinstance(rest, XBNBlocks)
    return rest


@pytest.mark.parametrize("preset", ["night", "paper"])
def test_xbn_networks_have_a_batch_free_stem_and_in_has_no_affine(preset):
    norms = blocks.norms(blocks.PRESETS[preset])
    layouts = {label: blocks_of(norm) for label, norm in norms.items() if norm.startswith("xbn")}
    assert all(layout.stem for layout in layouts.values())
    assert {str(layouts[label].norm) for label in ("IN-D1", "IN-D4")} == {"in.none"}
    assert layouts["P1+P2"].positions == (1, 2)
    assert str(layouts["GW"].norm).startswith("gw:")
    assert all(".stem=" in norm for label, norm in networks.PRESETS[preset].norms.items() if "XBN" in label)


def test_one_published_number_has_one_group_number():
    assert blocks.norms(blocks.PRESETS["paper"])["GN"] == networks.PRESETS["paper"].norms["GN"] == "gn:32"
    assert blocks.norms(blocks.PRESETS["night"])["GN"] == networks.PRESETS["night"].norms["GN"] == "gn:8"


def test_the_night_presets_share_runs():
    settings = blocks.PRESETS["night"]
    norms = blocks.norms(settings)

    def run(training, norm):
        return make_config(training.complete(replace(training.config, norm=norm, seed=3))).id

    p2 = run(settings.training, norms["P2"])
    other = strategies.PRESETS["night"]
    assert run(replace(other.training, config=strategies.STRATEGIES["COS"].apply(other.training.config)), other.xbn) == p2
    perturbed = perturbation.PRESETS["night"]
    labels = {"bn": "BN", "gn:16": "P2", "in.none": "IN-D1"}
    for norm in perturbed.norms:
        assert run(perturbed.training, perturbation.layout_of(norm)) == run(settings.training, norms[labels[norm]])


@pytest.mark.parametrize(("model", "num_blocks"), [(RESNET29, 9), (RESNET56, 18), (RESNEXT29, 9)])
def test_night_networks_have_bottlenecks_and_last_maps_of_16_positions(model, num_blocks):
    network = build_model(model, DataShape(3, 16, 16, 10))
    found = find_blocks(network, find_norms(network))
    assert [len(block.norms) for block in found] == [3] * num_blocks
    assert isinstance(network, nn.Sequential)
    assert network[:-1](torch.randn(1, 3, 16, 16)).shape[-2:] == (4, 4)


def test_trained_networks_are_measured_with_batch_statistics_and_have_an_estimation_shift(tmp_path):
    training = blocks.PRESETS["smoke"].training
    config = replace(training.config, model="small", norm="xbn=gn:4", num_train=32, num_test=40)
    values = measure_trained(config, training, tmp_path)
    assert 0 <= values["batch_accuracy"] <= 100
    assert len(values["shift"]) == len(values["esm_std"]) == 6  # of nine norms, three are GN
    assert blocks.mean_shift(values) > 0
    assert blocks.mean_shift({"shift": []}) is None
    gain = blocks.gain_of_batch_statistics("P2")
    rows = [values | {"network": "P2", "seed": 0}, {"network": "P2", "seed": 1, "accuracy": None, "batch_accuracy": None}]
    assert gain.at(rows, 0) == values["batch_accuracy"] - values["accuracy"]
    assert gain.at(rows, 1) is None
    items = gain.per_item(rows, 0)
    assert items is not None
    assert len(items) == 40
    assert items.mean() == pytest.approx(gain.at(rows, 0), abs=1e-3)


@pytest.mark.parametrize("name", ["xbn_blocks", "xbn_networks", "xbn_strategies"])
def test_claims_against_networks_at_chance_are_not_a_fair_test(name):
    recipe = load_recipe(name)
    settings = recipe.presets["night"]
    rows = []
    for number, cell in enumerate(recipe.cells(settings)):
        values = {"accuracy": 50.0 + number % 7, "train_accuracy": 90.0, "batch_accuracy": 51.0, "shift": [0.1, 0.2 + number % 3]}
        untrained = {"train_accuracy": 11.0} if "GN" in cell.values() else {}
        rows.append(cell | values | untrained)
    verdicts = judge(comparisons(recipe.claims(settings)), recipe.controls(settings), rows, None)
    unfair = [verdict.claim.statement for verdict in verdicts if verdict.verdict == NOT_FAIR]
    assert unfair == [verdict.claim.statement for verdict in verdicts if "GN" in names_of(verdict.claim)]
    assert bool(unfair) == (name != "xbn_strategies")


def names_of(claim):
    """Return the values of the cells of a claim."""
    return {value for side in claim.sides for cell in side.cells for value in cell.values()}
