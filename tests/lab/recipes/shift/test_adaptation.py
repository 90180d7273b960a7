"""Corruption and domain shift: results of cells, and the claims about XBN blocks."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.shift.adaptation import PRESETS, measure
from anynorm.lab.recipes.shift.adaptation_claims import claims
from anynorm.lab.recipes.shift.adaptation_results import corruption_loss, is_corrupted, mean_result, named, rank_correlation

SETTINGS = PRESETS["night"]
FIRST, LAST = SETTINGS.num_unlabeled


def result(data, count, source, recalibrated, shift=0.1):
    return {"data": data, "num_unlabeled": count, "source": source, "recalibrated": recalibrated, "shift": shift}


ROWS = [
    {
        "shift": "corruption", "norm": "bn", "seed": 0,
        "results": [result("uncorrupted", FIRST, 60.0, 60.0), result("contrast 1", FIRST, 50.0, 55.0, 0.2),
                    result("contrast 5", FIRST, 20.0, 50.0, 0.9), result("contrast 5", LAST, 20.0, 40.0)],
    },
    {
        "shift": "domain", "norm": "bn", "seed": 0,
        "results": [result("uncorrupted", FIRST, 99.0, 99.0), result("mnist-m@16", FIRST, 30.0, 40.0)],
    },
]  # fmt: skip


def test_results_are_averaged_over_targets_of_one_kind_of_shift():
    assert mean_result("source", SETTINGS, "bn", is_corrupted).at(ROWS, 0) == 35
    assert mean_result("recalibrated", SETTINGS, "bn", named("contrast"), few=True).at(ROWS, 0) == 40
    assert mean_result("source", SETTINGS, "bn", named("mnist-m@16"), shift="domain").at(ROWS, 0) == 30
    assert mean_result("source", SETTINGS, "bn", named("brightness")).at(ROWS, 0) is None
    assert corruption_loss(SETTINGS, "bn").at(ROWS, 0) == 25
    assert rank_correlation(SETTINGS, "bn").at(ROWS, 0) == pytest.approx(1)


def test_items_are_averaged_over_targets_and_have_the_mean_of_the_results(tmp_path):
    settings = replace(PRESETS["smoke"], norms=("bn",))
    cell = {"shift": "corruption", "norm": "bn", "seed": 0}
    rows = [cell | measure(settings, cell, tmp_path)]
    for column, few in (
        ("source", False),
        ("recalibrated", False),
        ("per_batch", False),
        ("recalibrated", True),
        ("mixed", True),
    ):
        for data in (is_corrupted, named("contrast"), named("uncorrupted")):
            quantity = mean_result(column, settings, "bn", data, few=few)
            items = quantity.per_item(rows, 0)
            assert items is not None
            assert len(items) == 50
            assert items.mean() == pytest.approx(quantity.at(rows, 0), abs=3)  # groups have one or two of the 64 images
    assert mean_result("shift", settings, "bn", is_corrupted).per_item(rows, 0) is None
    assert mean_result("source", SETTINGS, "bn", is_corrupted).per_item(ROWS, 0) is None
    settings = replace(settings, num_labeled=50)  # groups of one image
    rows = [cell | measure(settings, cell, tmp_path)]
    loss = corruption_loss(settings, "bn")
    items = loss.per_item(rows, 0)
    assert items is not None
    assert items.mean() == pytest.approx(loss.at(rows, 0), abs=1e-3)


def test_only_claims_about_xbn_blocks_are_the_papers():
    papers = [claim.statement for claim in claims(SETTINGS) if claim.source.paper]
    assert len(papers) == 4
    assert all("`xbn=" in statement for statement in papers)
    assert not any(claim.source.paper for claim in claims(PRESETS["desk"]))
