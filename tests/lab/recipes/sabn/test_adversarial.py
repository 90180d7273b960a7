"""The recipe sabn_adversarial: published settings, controls, dependent claims, and the noise of attacked images."""

import numpy as np
import pytest

from anynorm.lab.recipes.sabn.adversarial.claims import BRANCHES_MATTER, claims, controls
from anynorm.lab.recipes.sabn.adversarial.settings import AUX_BN, BN, MODE_NORM, PRESETS, SA_AUX_BN
from anynorm.lab.recipes.support.adversarial import train_mode_label
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.recipes.support.verdicts import judge
from anynorm.lab.training.items import pack_hits
from tests.lab.recipes.comparisons import noise

ROBUST = [
    f"robust_accuracy_{attack}{mode}{branch}"
    for attack in ("pgd10", "pgd20")
    for mode in ("", "_train_mode")
    for branch in ("", "_adversarial_branch")
]


def rows(effect):
    """Return rows of `night` in which AuxBN is `effect` points better than BN on clean images, and SaAuxBN two points more."""
    accuracies = {BN: 60.0, MODE_NORM: 59.0, AUX_BN: 60.0 + effect, SA_AUX_BN: 62.0 + effect}
    result = []
    for norm in PRESETS["night"].norms:
        for seed in range(6):
            accuracy = accuracies[norm.partition(",")[0]] + noise([norm, seed], 0.1)
            row = {"norm": norm, "seed": seed, "failure": "", "accuracy": accuracy, "accuracy_adversarial_branch": accuracy}
            row |= {"train_accuracy": 70.0, "train_adversarial_accuracy": 40.0, "clean_loss": 1.0, "adversarial_loss": 2.0}
            result.append(row | dict.fromkeys(ROBUST, accuracy / 2))
    return result


def judged(data):
    settings = PRESETS["night"]
    return judge(claims(settings), controls(settings), data, None)


def test_the_paper_preset_has_the_mean_of_the_losses_that_its_learning_rate_belongs_to():
    for preset in ("night", "paper"):
        assert options_of(PRESETS[preset].training.config).loss_weight == 0.5
    assert options_of(PRESETS["desk"].training.config).loss_weight == 1.0


def test_train_mode_attacks_are_measured_for_both_kinds_of_branches_except_at_the_desk():
    labels = {train_mode_label(AUX_BN), train_mode_label(SA_AUX_BN)}
    assert labels <= set(PRESETS["paper"].norms)
    assert labels & set(PRESETS["desk"].norms) == {train_mode_label(AUX_BN)}
    assert any(train_mode_label(SA_AUX_BN) in claim.statement for claim in claims(PRESETS["paper"]))
    assert not any(train_mode_label(SA_AUX_BN) in claim.statement for claim in claims(PRESETS["desk"]))


def test_the_sandwich_is_tested_only_if_branches_matter():
    for effect, verdict in ((9.6, "holds"), (1.0, "not a fair test")):
        found = [each for each in judged(rows(effect)) if each.claim.source.place == "Table 3"]
        compared = [each for each in found if SA_AUX_BN in each.claim.statement or AUX_BN in each.claim.statement]
        assert {each.verdict for each in compared} == {verdict}
        assert {each.claim.requires for each in compared} == {(BRANCHES_MATTER,)}


def test_a_network_that_did_not_learn_is_no_opponent():
    data = [row | ({"train_accuracy": 30.0} if row["norm"] == BN else {}) for row in rows(9.6)]
    verdicts = [each for each in judged(data) if f"`{BN}`" in each.claim.statement]
    assert {each.verdict for each in verdicts} == {"not a fair test"}
    assert "training accuracy (%) of norm bn: 30, below 50" in verdicts[0].note


def test_what_two_networks_do_with_the_same_images_is_counted_once():
    papers = [claim for claim in claims(PRESETS["paper"]) if claim.source.paper]
    groups = [claim.group for claim in papers]
    assert all(groups)
    assert groups.count(f"{BN} > {MODE_NORM}, clean images") == 2  # one branch, in both tables
    assert groups.count(f"{SA_AUX_BN} > {AUX_BN}, attacked images") == 3  # PGD-10, PGD-20, loss
    assert groups.count(f"{SA_AUX_BN} > {AUX_BN}, clean images, clean branch") == 2  # accuracy and loss
    assert groups.count(f"{BN} > {SA_AUX_BN}, clean images, adversarial branch") == 2  # the order, and on par


def test_modenorm_is_compared_with_saauxbn_on_clean_and_attacked_images():
    groups = {claim.group for claim in claims(PRESETS["paper"])}
    assert {group for group in groups if group.startswith(f"{SA_AUX_BN} > {MODE_NORM}")} == {
        f"{SA_AUX_BN} > {MODE_NORM}, clean images, clean branch",
        f"{SA_AUX_BN} > {MODE_NORM}, clean images, adversarial branch",
        f"{SA_AUX_BN} > {MODE_NORM}, attacked images",
    }


def test_the_losses_of_fig_6_are_claims_where_they_are_measured():
    places = {preset: {claim.source.place for claim in claims(PRESETS[preset])} for preset in ("desk", "paper")}
    assert "Fig. 6" in places["paper"]
    assert "Fig. 6" not in places["desk"]


def test_an_accuracy_carries_the_noise_of_its_images():
    by_group = {claim.group: claim.sides[0] for claim in claims(PRESETS["desk"])}
    robust = by_group[f"{SA_AUX_BN} > {AUX_BN}, attacked images"]
    clean = by_group[f"{SA_AUX_BN} > {AUX_BN}, clean images, adversarial branch"]
    for quantity, count in ((robust, 300), (clean, 2000)):
        assert isinstance(quantity, Measured)
        column = str(quantity.column)
        row = {"norm": SA_AUX_BN, "seed": 0, column: 50.0}
        ((weight, variance),) = quantity.binomial_terms([row], None)
        assert weight == 1
        assert variance == pytest.approx(50 * 50 / count)
        assert quantity.per_item([row], 0) is None
        known = row | {"items": {column: pack_hits([True, False, True, False])}}
        np.testing.assert_array_equal(quantity.per_item([known], 0), [100, 0, 100, 0])
