"""The choice of G on validation data, and statistics of groups."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.recipes.bgn import batch_size, groups
from anynorm.lab.recipes.bgn.adaptation import recipe as adaptation
from anynorm.lab.recipes.bgn.few_shot import recipe as few_shot
from anynorm.lab.recipes.bgn.group_choice import GroupSweep, choose_groups, with_groups
from anynorm.lab.recipes.bgn.group_statistics import group_statistics, layer_statistics
from anynorm.lab.recipes.bgn.validation_data import validation_data
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.training.config import config_from_dict
from anynorm.lab.training.store import Store


def test_the_best_number_of_groups_on_pilot_seeds_is_chosen():
    seeds = []

    def accuracy(groups, seed):
        seeds.append(seed)
        return {16: 50.0, 4: 55.0, 1: 52.0}[groups] + (seed - 1000)

    chosen = choose_groups(GroupSweep((16, 4, 1), seeds=2), accuracy)
    assert chosen.groups == 4
    assert with_groups("bgn.aux@2", chosen.groups) == "bgn:4.aux@2"
    assert chosen.columns == {"groups": 4, "group_sweep": {"16": 50.5, "4": 55.5, "1": 52.5}}
    assert sorted(set(seeds)) == [1000, 1001]


def test_a_number_of_groups_with_a_failed_run_is_not_chosen():
    fails = {(4, 1001)}
    chosen = choose_groups(GroupSweep((4, 1)), lambda groups, seed: None if (groups, seed) in fails else 10.0 * groups)
    assert chosen.groups == 1
    with pytest.raises(anynorm.DataError, match="a run failed for every number of groups of the sweep: 4, 1"):
        choose_groups(GroupSweep((4, 1)), lambda groups, seed: None)


def test_validation_images_are_training_images():
    data, validation = load_dataset("digits"), load_dataset(validation_data("digits"))
    training = {image.numpy().tobytes() for image in data.train[0]}
    assert len(validation.train[0]) + len(validation.test[0]) == len(data.train[0])
    for images, _ in (validation.train, validation.test):
        assert {image.numpy().tobytes() for image in images} <= training
    with pytest.raises(anynorm.DataError, match="'mnist' has no validation data"):
        validation_data("mnist")


def test_a_sweep_is_read_from_text():
    assert GroupSweep.from_text("auto") == GroupSweep((256, 64, 16, 4, 1), seeds=2)
    assert GroupSweep.from_text("64, 16,4") == GroupSweep((64, 16, 4))
    for text in ("", "automatic", "64;16", "64,-1", "1.5", "64,"):
        with pytest.raises(anynorm.DataError, match="groups must be auto, or numbers of groups such as 64,16,4; got"):
            GroupSweep.from_text(text)
    for text in ("64,0", "4,4"):
        with pytest.raises(anynorm.DataError, match="must have different candidates and at least 1 seed, all positive"):
            GroupSweep.from_text(text)


def test_only_bgn_without_a_number_gets_the_chosen_groups_and_only_if_there_are_candidates(tmp_path):
    sweep = GroupSweep((4, 1), seeds=1)
    assert [norm for norm in ("bn", "bgn", "bgn.aux@2", "bgn:16", "gbgn:8,4", "[1,64]") if sweep.chooses(norm)] == [
        "bgn",
        "bgn.aux@2",
    ]
    settings = replace(batch_size.PRESETS["smoke"], groups=GroupSweep())
    row = batch_size.RECIPE.measure(settings, {"norm": "bgn", "batch_size": 2, "seed": 0}, tmp_path)
    assert "groups" not in row
    assert [run.config["norm"] for run in Store(tmp_path).runs()] == ["bgn"]


def test_presets_with_records_have_no_sweep():
    for recipe in (batch_size, few_shot, adaptation):
        assert recipe.PRESETS["desk"].groups.candidates == ()
        assert recipe.PRESETS["night"].groups.candidates


def test_test_images_have_no_part_in_the_choice(tmp_path):
    settings = batch_size.PRESETS["smoke"]
    row = batch_size.RECIPE.measure(settings, {"norm": "bgn", "batch_size": 32, "seed": 0}, tmp_path)
    assert row["groups"] in settings.groups.candidates
    assert row["group_sweep"][str(row["groups"])] == max(row["group_sweep"].values())
    configs = [config_from_dict(run.config) for run in Store(tmp_path).runs()]
    pilots = [config for config in configs if config.seed >= 1000]
    measured = [config for config in configs if config.seed == 0]
    assert {config.norm for config in pilots} == {"bgn:4", "bgn:1"}
    assert {(config.num_validation, config.num_test) for config in pilots} == {(settings.num_validation, None)}
    assert [(config.norm, config.num_validation) for config in measured] == [(f"bgn:{row['groups']}", 0)]


def test_pilots_of_few_shot_learning_and_adaptation_are_tested_on_validation_data(tmp_path):
    pilot = few_shot.RECIPE.run("smoke", tmp_path, runs=tmp_path / "few_shot", seeds=1, pilot=True)
    assert not any(row["failure"] for row in pilot.rows)
    (store,) = (tmp_path / "few_shot").iterdir()
    assert {run.config["data"] for run in Store(store).runs()} == {validation_data("digits")}
    for seed in (0, 1000):
        adaptation.measure(adaptation.RECIPE.presets["smoke"], {"norm": "bn", "seed": seed}, tmp_path / "adaptation")
    configs = [config_from_dict(run.config) for run in Store(tmp_path / "adaptation").runs()]
    assert {config.seed: options_of(config).target for config in configs} == {
        0: "digits-faded",
        1000: validation_data("digits-faded"),
    }


def test_norms_may_have_their_own_learning_rates(tmp_path):
    settings = replace(few_shot.RECIPE.presets["smoke"], lrs={"GN": 0.02})
    few_shot.measure(settings, {"norm": "GN", "seed": 0}, tmp_path)
    few_shot.measure(settings, {"norm": "BN", "seed": 0}, tmp_path)
    assert {run.config["norm"]: run.config.get("lr", 0.1) for run in Store(tmp_path).runs()} == {"gn:8": 0.02, "bn": 0.1}


def test_noise_falls_with_the_values_of_a_statistic_and_confusion_with_the_groups():
    generator = torch.Generator().manual_seed(0)
    means = torch.linspace(-3, 3, 64).double()
    batches = [means + torch.randn(8, 64, generator=generator).double() for _ in range(200)]
    coarse, fine = layer_statistics(batches, 1), layer_statistics(batches, 64)
    assert fine.confusion == 0
    assert fine.noise == pytest.approx(8**-0.5, rel=0.05)  # sd of a mean of 8 values of variance 1
    between = float(means.var(unbiased=False))
    assert coarse.confusion == pytest.approx(between / (between + 1), rel=0.02)
    assert coarse.noise == pytest.approx((8 * 64) ** -0.5 / (between + 1) ** 0.5, rel=0.2)
    with pytest.raises(anynorm.DiagnosticError, match="64 features cannot be divided into 5 equal groups"):
        layer_statistics(batches, 5)
    with pytest.raises(anynorm.DiagnosticError, match="at least 2 batches; got 1"):
        layer_statistics(batches[:1], 1)


def test_measuring_statistics_changes_neither_buffers_nor_mode():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    group_statistics(model, torch.randn(6, 1, 8, 8).split(2), 4)
    assert not model.training
    assert not model[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_claims_about_statistics_are_made_only_where_they_are_measured():
    def places(preset):
        return {claim.source.place for claim in groups.claims(groups.PRESETS[preset])}

    assert "contribution 2" in places("night")
    assert places("night") - places("desk") == {"contribution 2"}
