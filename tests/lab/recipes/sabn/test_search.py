"""The recipe sabn_search: order of the updates, controls, and dependent claims."""

import re

import pytest

from anynorm.lab.recipes.sabn.search.claims import claims, controls
from anynorm.lab.recipes.sabn.search.settings import PRESETS
from anynorm.lab.recipes.support.controls import Requirement
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.recipes.support.verdicts import count_groups, judge
from tests.lab.recipes.comparisons import noise

ACCURACIES = {"DARTS": 44.0, "DARTS-affine": 63.0, "DARTS-CCBN": 62.0, "DARTS-SaBN": 71.5, "DARTS-SaBN, class 0": 65.0}


def rows(preset, darts=44.0, distance=0.5):
    """Return rows with the paper's accuracies on CIFAR-100."""
    settings, result = PRESETS[preset], []
    for search, details in settings.searches.items():
        for method, accuracy in (ACCURACIES | {"DARTS": darts}).items():
            for seed in range(6):
                value = accuracy + noise([search, method, seed], 0.2)
                row = {"search": search, "method": method, "seed": seed, "failure": "", "alpha distance": distance}
                row |= {"supernet_accuracy": 60.0, "table": {}}
                for data_set in details.accuracies:
                    row |= {f"cell accuracy {data_set}": value, f"expected accuracy {data_set}": value}
                    row |= {f"rank correlation {data_set}": value / 100}
                    row["table"] |= {data_set: {"mean": 61.41, "best": 73.51, "sd": 12.0}}
                result.append(row)
    return result


def judged(preset, **changes):
    settings = PRESETS[preset]
    return judge(claims(settings), controls(settings), rows(preset, **changes), None)


def test_alpha_is_updated_after_the_weights_as_in_the_public_code():
    for preset, expected in (("desk", False), ("night", True), ("paper", True)):
        for search in PRESETS[preset].searches.values():
            assert options_of(search.training.config).weights_first is expected


def test_sabn_is_tested_if_darts_fails_and_alpha_has_moved():
    assert {each.verdict for each in judged("night")} == {"holds"}
    compared = [each for each in judged("night", darts=67.0) if each.claim.requires]
    assert {each.verdict for each in compared} == {"not a fair test"}
    pattern = r"points of DARTS below the best cell on CIFAR-100 \(search on CIFAR-10\): 6\.\d+, below 14\.73"
    assert re.search(pattern, compared[0].note)
    uniform = judged("night", distance=0.05)
    assert {each.verdict for each in uniform} == {"not a fair test"}
    assert "distance of α from uniform" in uniform[0].note


def test_the_failure_of_darts_is_half_of_the_papers_distance_from_the_best_cell():
    requirements = [control for control in controls(PRESETS["paper"]) if isinstance(control, Requirement)]
    assert [control.at_least for control in requirements] == pytest.approx([(73.51 - 44.05) / 2, (47.31 - 36.47) / 2])


def test_metrics_and_columns_of_one_search_are_counted_once():
    desk = claims(PRESETS["desk"])
    groups = {claim.group for claim in desk if claim.source.paper}
    assert len(groups) == 6  # three of SaBN, affine, CCBN, and the best cell
    counted = count_groups([each for each in judged("night") if each.claim.source.paper])
    assert counted["holds"] == 6
    assert sum(counted.values()) == 6


def test_metrics_other_than_the_accuracy_of_the_cell_are_ours():
    for preset in ("desk", "night", "paper"):
        for claim in claims(PRESETS[preset]):
            of_cell = claim.statement.startswith("accuracy of the cell")
            assert (claim.published is not None) == (claim.source.paper == "sabn") == of_cell
        assert any(claim.source.paper for claim in claims(PRESETS[preset]))


def test_ccbn_is_better_than_darts_on_one_data_set_and_worse_on_the_other():
    statements = [claim.statement for claim in claims(PRESETS["paper"]) if claim.source.place == "sec. 4.2, CCBN against DARTS"]
    assert statements == [
        "accuracy of the cell on CIFAR-100 of DARTS-CCBN is larger than of DARTS",
        "accuracy of the cell on ImageNet16-120 of DARTS is larger than of DARTS-CCBN",
    ]
