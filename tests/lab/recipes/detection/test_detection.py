"""The recipes of detection: rows of the tables, controls, pretrained backbones per seed, and the search of learning rates."""

from dataclasses import replace
from pathlib import Path

import pytest

from anynorm.lab.recipes.sn import detection as sn
from anynorm.lab.recipes.sn.detectors import COCO_C4, SN_8_2
from anynorm.lab.recipes.support import backbones
from anynorm.lab.recipes.support.detection import measure as measuring
from anynorm.lab.recipes.support.detection.settings import Detector
from anynorm.lab.recipes.support.runs import make_config
from anynorm.lab.recipes.support.verdicts import HOLDS, NOT_FAIR, judge
from anynorm.lab.recipes.xbn import detection as xbn
from anynorm.lab.training.record import DONE, RunRecord
from tests.lab.recipes.comparisons import comparisons, noise

RECIPES = {"sn": sn.RECIPE, "xbn": xbn.RECIPE}
LAYER = [0.1, 0.2, 0.7, 0.1, 0.2, 0.7]


def make_rows(settings, aps, seeds=6, **changes):
    """Return rows of detectors whose AP is given by name, with small differences between seeds."""
    layers = {"backbone.0": LAYER, "heads.box.0": LAYER[::-1], "heads.mask.0": LAYER}
    return [
        {
            "norm": norm, "seed": seed, "ap": ap, "mask_ap": ap,
            "ap_batch_statistics": 40.0, "ap_recalibrated": 40.0, "num_backbones": settings.num_backbones,
            "weights": {name: [w + noise((name, k, seed), 0.001) for k, w in enumerate(layer)] for name, layer in layers.items()},
            "backbone_accuracy": 70.0, "failure": "", "curve": [{"step": 1, "ap": ap}], **changes,
        }
        for norm in settings.variants
        for seed in range(seeds)
        for ap in [aps[norm] + noise({"norm": norm, "seed": seed}, 0.1)]
    ]  # fmt: skip


def verdicts(recipe, settings, rows):
    return {v.claim.statement: v for v in judge(recipe.claims(settings), recipe.controls(settings), rows, None)}


def falling_ap(settings, order):
    """Return an AP by detector that falls in the order of the first letters of their norms."""
    return {norm: 40.0 - 6 * order.index(norm.partition(",")[0].partition(" ")[0]) for norm in settings.variants}


# Settings ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["night", "paper"])
@pytest.mark.parametrize("name", RECIPES)
def test_each_seed_has_a_backbone_and_there_are_at_least_three(name, preset):
    settings = RECIPES[name].presets[preset]
    assert settings.backbone_per_seed
    assert settings.num_backbones >= 3


def test_the_paper_presets_have_the_rows_of_all_tables():
    rows = sn.RECIPE.presets["paper"].variants.keys()
    assert set(sn.TABLE_4) | {f"{row}, Faster R-CNN" for row in sn.TABLE_3} | set(sn.TABLE_7) == rows
    xbn_rows = xbn.RECIPE.presets["paper"].variants.keys()
    heads = {f"{norm}, pretrained{head}" for head, row in (xbn.TABLE_4 | xbn.TABLE_5).items() for norm in row}
    assert heads | {f"{norm}, {count} per device" for count, row in xbn.TABLE_6.items() for norm in row} < xbn_rows


def test_bn_and_xbn_have_the_same_norms_in_fpn_and_heads_and_only_bn_of_xbn_is_frozen():
    for preset in ("night", "paper"):
        variants = xbn.RECIPE.presets[preset].variants
        bn, own = (variants[f"{norm}, 2 per device"].norm for norm in ("bn", "xbn"))
        assert bn.partition(";")[2] == own.partition(";")[2] != ""
        assert variants["bn†, pretrained"].norm_free == ("fpn", "heads")
        fine_tuned = variants["xbn, pretrained"]
        assert (fine_tuned.frozen_submodule, fine_tuned.freeze_batch_free) == ("backbone", False)


def test_training_from_scratch_on_coco_has_90000_steps_at_every_batch_size_and_searches_the_learning_rate():
    for name, detector in xbn.RECIPE.presets["paper"].variants.items():
        if "per device" in name:
            images = detector.devices.num_devices * detector.devices.samples
            assert detector.training.config.epochs * 117_266 / images == pytest.approx(90_000, rel=0.03)
            config = make_config(replace(detector.training.config, lr=0.04), detector.training)
            assert (detector.lrs, config.lr) == ((0.01, 0.02, 0.04), 0.04)


def test_table_7_has_the_published_schedule_and_sn_starts_from_two_images_per_device():
    detector = sn.RECIPE.presets["paper"].variants["sn, C4, pretrained"]
    assert (detector.fpn, detector.devices) == (False, (4, 3))
    assert COCO_C4.epochs * 117_266 / 12 == pytest.approx(120_000, rel=0.03)
    assert [COCO_C4.lr_at(step / 120) for step in (79, 81)] == pytest.approx([0.01, 0.001])
    assert detector.pretraining == SN_8_2
    assert (SN_8_2.config.devices, SN_8_2.config.batch_size) == (8, 2)


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        (Detector("bn"), True),
        (Detector("gn:8"), False),
        (Detector("gn:8;heads=sn"), True),
        (Detector("xbn=gn:8;fpn=gn:8;heads=gn:8"), True),
        (Detector("bn;fpn=gn:8;heads=gn:8", frozen_submodule="backbone"), False),
        (Detector("bn", frozen_submodule="backbone"), True),
        (Detector("bn", frozen_submodule="backbone", norm_free=("fpn", "heads")), False),
        (Detector("bn", frozen_submodule="backbone", norm_free=("heads.rpn",), fpn=False), False),
        (Detector("bn", frozen_submodule="backbone", fpn=False), True),
    ],
)
def test_detectors_with_trained_running_statistics_are_known(detector, expected):
    assert detector.has_running_stats == expected


# Measurement ------------------------------------------------------------------------------------------------------------------


def fake_run(config, runs):
    """Return a record whose AP is best at the learning rate 0.02, and whose seed is its classification error."""
    metrics = (
        {"test_AP": 30.0 - 100 * abs(config.lr - 0.02)} if config.task == "detection" else {"test_error": float(config.seed)}
    )
    return RunRecord(config.id, {}, DONE, metrics=metrics, seconds=1.0, provenance={"commit": ""})


def test_the_best_learning_rate_counts_and_each_seed_starts_from_its_own_backbone(monkeypatch):
    for module in (measuring, backbones):
        monkeypatch.setattr(module, "train_run", fake_run)
    monkeypatch.setattr(measuring, "last_artifact", lambda *_: "")
    settings = xbn.RECIPE.presets["smoke"]
    detector = replace(settings.variants["xbn, pretrained"], lrs=(0.01, 0.02, 0.04))
    detector = replace(detector, training=replace(settings.training, base_batch_size=None))
    settings = replace(settings, variants={"a": detector}, seeds=5)
    rows = [measuring.measure(settings, {"norm": "a", "seed": seed}, Path("runs")) for seed in (0, 4)]
    assert [row["lr"] for row in rows] == [0.02, 0.02]
    assert rows[0]["ap_by_lr"] == [29, 30, 28]
    assert [row["backbone_accuracy"] for row in rows] == [100, 96]
    assert rows[0]["num_backbones"] == 5
    shared = replace(settings, backbone_per_seed=False)
    row = measuring.measure(shared, {"norm": "a", "seed": 4}, Path("runs"))
    assert (row["backbone_accuracy"], row["num_backbones"]) == (100, 1)


# Claims -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["smoke", "desk", "night", "paper"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_requirement_of_a_claim_is_a_control(name, preset):
    settings = RECIPES[name].presets[preset]
    assert verdicts(RECIPES[name], settings, make_rows(settings, dict.fromkeys(settings.variants, 30.0)))


def test_sn_above_gn_above_bn_holds_if_all_controls_do():
    settings = sn.RECIPE.presets["night"]
    found = verdicts(sn.RECIPE, settings, make_rows(settings, falling_ap(settings, ["sn", "gn", "bn†", "bn"])))
    assert found["`sn, C4` has a higher AP than `gn, C4`"].verdict == HOLDS
    assert found["`sn + sn` has a higher mask AP than `gn + gn`"].verdict == HOLDS
    backbone = found["SN weights BN more than IN in the backbone of `sn + sn`"]
    assert backbone.verdict == HOLDS
    curves = found["the mean AP of `gn, C4, pretrained` during training is higher than that of `bn, C4, pretrained`"]
    assert (curves.verdict, curves.claim.source.place) == (HOLDS, "Fig. 8a")


@pytest.mark.parametrize(
    ("changes", "statement", "reason"),
    [
        ({"num_backbones": 1}, "`sn + sn` has a higher AP than `gn + gn`", "backbones per norm of sn + sn, gn + gn: 1, below 3"),
        ({"backbone_accuracy": 12}, "`sn + sn` has a higher AP than `gn + gn`", "accuracy of the pretrained classifier"),
        (
            {"ap_batch_statistics": 3},
            "`sn, C4` has a higher AP than `bn, C4`",
            "AP with the statistics of training (%) of norm sn",
        ),
        ({"ap": 30.0}, "`sn, C4` has a higher AP than `gn, C4`", "AP of gn minus that of bn in Table 7 (points): 0, below 5"),
        (
            {"weights": {"backbone.0": [1 / 3 + 0.001] * 6}},
            "SN weights BN more than IN in the backbone of `sn + sn`",
            "distance of the mixing weights from 1/3: 0.001, below 0.02",
        ),
    ],
)
def test_a_claim_whose_control_fails_is_not_a_fair_test(changes, statement, reason):
    settings = sn.RECIPE.presets["night"]
    rows = make_rows(settings, falling_ap(settings, ["sn", "gn", "bn†", "bn"]), **changes)
    found = verdicts(sn.RECIPE, settings, rows)[statement]
    assert found.verdict == NOT_FAIR
    assert reason in found.note


def test_the_desk_preset_of_xbn_compares_bn_and_xbn_with_different_heads():
    settings = xbn.RECIPE.presets["desk"]
    found = verdicts(xbn.RECIPE, settings, make_rows(settings, falling_ap(settings, ["xbn", "gn", "bn", "bn†"])))
    verdict = found["`xbn, 2 per device` has a higher AP than `bn, 2 per device`"]
    assert (verdict.verdict, verdict.note) == (NOT_FAIR, "bn and xbn have the same norms in FPN and heads (1: yes): 0, below 1")


def test_the_same_runs_in_two_recipes_are_one_group():
    groups = [{claim.group for claim in comparisons(recipe.claims(recipe.presets["desk"]))} for recipe in RECIPES.values()]
    assert groups[0] & groups[1] - {""} == {sn.SHARED}
    groups = [{claim.group for claim in comparisons(recipe.claims(recipe.presets["night"]))} for recipe in RECIPES.values()]
    assert not groups[0] & groups[1] - {""}
