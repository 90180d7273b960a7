"""Claims and controls of the recipes of bgn, on rows made here."""

from dataclasses import replace

import pytest

from anynorm.lab.recipes.bgn import adversarial, batch_size, groups, saturation
from anynorm.lab.recipes.bgn.adaptation import recipe as adaptation
from anynorm.lab.recipes.bgn.adaptation.claims import BY_PAIR, PUBLISHED
from anynorm.lab.recipes.bgn.few_shot import recipe as few_shot
from anynorm.lab.recipes.bgn.search import recipe as search
from anynorm.lab.recipes.support.claims import Check, Larger
from anynorm.lab.recipes.support.verdicts import judge
from tests.lab.recipes.comparisons import comparisons

SEEDS = 6


def verdicts_of(recipe, settings, values):
    """Return the verdicts by statement on rows whose metrics are `values(cell)`."""
    settings = replace(settings, seeds=SEEDS)
    rows = [cell | {"failure": ""} | values(cell) for cell in recipe.cells(settings)]
    verdicts = judge(recipe.claims(settings), recipe.controls(settings), rows, None)
    return {verdict.claim.statement: verdict for verdict in verdicts}


def noise(cell):
    """Return a small number that depends on the seed and on the length of the norm's name, so that differences have a spread."""
    name = cell.get("norm", cell.get("policy", cell.get("num_groups")))
    return 0.05 * ((cell["seed"] + len(str(name))) % 3)


def test_bn_that_did_not_learn_at_batch_2_is_not_a_fair_opponent():
    def values(cell):
        failing = cell["norm"] == "bn" and cell["batch_size"] == 2
        return {"accuracy": (30.0 if failing else 70.0) + noise(cell), "train_accuracy": 12.0 if failing else 80.0}

    verdicts = verdicts_of(batch_size.RECIPE, batch_size.PRESETS["night"], values)
    assert verdicts["`bgn` is more accurate than `bn` (batch 2)"].verdict == "not a fair test"
    assert verdicts["`bgn` is more accurate than `gn:8` (batch 2)"].verdict != "not a fair test"


def test_claims_about_small_batches_need_a_bn_that_loses_points_there():
    verdicts = verdicts_of(
        batch_size.RECIPE, batch_size.PRESETS["night"], lambda cell: {"accuracy": 70.0 + noise(cell), "train_accuracy": 80.0}
    )
    verdict = verdicts["`bgn` is more accurate than `bn` (batch 2)"]
    assert verdict.verdict == "not a fair test"
    assert verdict.note.startswith("points that bn loses from the largest batch to the smallest: 0")


def test_the_mean_over_batch_sizes_is_compared_with_the_papers_mean():
    paper = comparisons(batch_size.claims(batch_size.PRESETS["paper"]))
    claims = [claim for claim in paper if claim.source.place.endswith("means")]
    assert [claim.margin for claim in claims] == pytest.approx([1.403, 0.521, 2.427], abs=5e-4)  # rounded in the text
    assert all(isinstance(claim, Larger) and len(claim.larger.cells) == 7 for claim in claims)


def test_saturation_of_bn_is_an_equivalence_that_a_rising_accuracy_refutes():
    flat, rising = (
        verdicts_of(
            saturation.RECIPE,
            saturation.PRESETS["night"],
            lambda cell, slope=slope: {
                "accuracy": 60.0 + slope * cell["batch_size"] / 128 + noise(cell) * (cell["batch_size"] == 64),
                "train_accuracy": 70.0,
            },
        )["`bn` is as accurate at batch 512 as at batch 64: it saturates"].verdict
        for slope in (0.0, 2.0)
    )
    assert (flat, rising) == ("holds", "reversed")


def test_an_untrained_opponent_in_few_shot_learning_is_not_a_fair_test():
    def values(cell):
        untrained = cell["norm"] == "GN"
        accuracy = (40.0 if untrained else 80.0) + noise(cell)
        return {"1-shot accuracy": accuracy, "5-shot accuracy": accuracy, "train_accuracy": 2.0 if untrained else 80.0}

    verdicts = verdicts_of(few_shot.RECIPE, few_shot.RECIPE.presets["desk"], values)
    assert verdicts["the 1-shot accuracy of BGN is larger than that of GN"].verdict == "not a fair test"
    assert verdicts["the 1-shot accuracy of BGN is larger than that of BN"].verdict != "not a fair test"


def test_pn_may_fail_in_adversarial_training_and_others_may_not():
    def values(cell):
        learned = cell["norm"] not in ("pn", "ln")
        columns = ("robust_accuracy_pgd4", "robust_accuracy_pgd20")
        robust = {f"{name}{mode}": (40.0 if learned else 10.0) + noise(cell) for name in columns for mode in ("", "_train_mode")}
        return {"accuracy": 60.0 + noise(cell), "train_accuracy": 50.0 if learned else 10.0, **robust}

    verdicts = verdicts_of(adversarial.RECIPE, adversarial.PRESETS["desk"], values)
    assert verdicts["the robust accuracy of `bn` is higher than that of `pn`"].verdict == "holds"
    assert verdicts["the robust accuracy of `bgn:128` is higher than that of `ln`"].verdict == "not a fair test"


def search_values(**accuracies):
    """Return the metrics of cells of `bgn_search`, whose norms have these accuracies, or 90 %."""

    def values(cell):
        accuracy = accuracies.get(cell.get("norm"), 90.0) + noise(cell)
        return {"accuracy": accuracy, "train_accuracy": accuracy, "alpha_distance": 0.2}

    return values


def test_a_norm_fails_only_where_bn_learns_and_by_the_threshold_of_the_controls():
    def verdict(**accuracies):
        verdicts = verdicts_of(search.RECIPE, search.RECIPE.presets["paper"], search_values(**accuracies))
        return verdicts["LN fails: its training accuracy stays below 80 % (Table 3)"].verdict

    assert verdict(LN=10.0) == "holds"
    assert verdict(LN=85.0) == "reversed"
    assert verdict(LN=10.0, BN=20.0) == "not a fair test"


def test_a_norm_that_fails_in_the_paper_may_fail_below_bgn():
    statement = "BGN is more accurate than LN, which fails to converge in the paper (Table 3)"
    verdicts = verdicts_of(search.RECIPE, search.RECIPE.presets["night"], search_values(LN=10.0, GN=10.0))
    assert verdicts[statement].verdict == "holds"
    assert verdicts["BGN is more accurate than GN (Table 3)"].verdict == "not a fair test"
    verdicts = verdicts_of(search.RECIPE, search.RECIPE.presets["night"], search_values(BGN=10.0))
    assert verdicts[statement].verdict == "not a fair test"


def test_convergence_is_the_papers_claim_in_its_networks_alone():
    def sources(preset):
        claims = search.RECIPE.claims(search.RECIPE.presets[preset])
        return {claim.statement.partition(":")[0]: claim.source.paper for claim in claims if " fails: " in claim.statement}

    assert sources("paper") == {"IN fails": "bgn", "LN fails": "bgn", "PN fails": "bgn"}
    assert sources("night") == {}
    assert sources("desk") == {"IN fails": ""}  # in networks that end with a norm


def test_accuracies_of_a_benchmark_have_no_noise_of_test_images():
    def values(cell):
        if cell["part"] != "policies":
            return search_values()(cell)
        return {"accuracy": 94.0 - 0.9 * (cell["policy"] == "random") + noise(cell)}

    settings = replace(search.RECIPE.presets["desk"], seeds=SEEDS, policy_seeds=SEEDS)
    rows = [cell | {"failure": ""} | values(cell) for cell in search.RECIPE.cells(settings)]
    claims = [claim for claim in search.RECIPE.claims(settings) if not isinstance(claim, Check)]
    verdicts = judge(claims, search.RECIPE.controls(settings), rows, settings.num_test)
    (verdict,) = (each for each in verdicts if each.claim.statement.startswith("MANAS with least-squares"))
    assert verdict.estimate.test_variance == 0
    assert verdict.verdict == "holds"


def test_the_explanation_by_noise_and_confusion_can_be_refuted():
    def verdicts(accuracy):
        def values(cell):
            many = cell["num_groups"]
            return {"accuracy": accuracy(many) + noise(cell), "train_accuracy": 80.0, "noise": many**0.5, "confusion": 1 / many}

        found = verdicts_of(groups.RECIPE, groups.PRESETS["night"], values).values()
        return [verdict.verdict for verdict in found if verdict.claim.source.place == "contribution 2"]

    assert verdicts(lambda many: 60.0 - many**0.5) == ["holds", "reversed"]
    assert verdicts(lambda many: 60.0 + many**0.5) == ["reversed", "holds"]


def test_table_7_has_claims_and_columns_for_its_six_tasks():
    for norm, mean in PUBLISHED.items():
        assert sum(table[norm] for table in BY_PAIR.values()) / 6 == pytest.approx(mean, abs=0.06)

    def values(cell):
        by_pair = {pair: table[cell["norm"]] + noise(cell) for pair, table in BY_PAIR.items()}
        accuracy = sum(by_pair.values()) / 6
        return {"accuracy": accuracy, "by_pair": by_pair, "train_accuracy": 99.0, "source_accuracy": 70.0, "adabn_accuracy": 75.0}

    verdicts = verdicts_of(adaptation.RECIPE, adaptation.RECIPE.presets["paper"], values)
    assert verdicts["`bgn` is more accurate than `bn` (W to A)"].verdict == "holds"
    assert verdicts["`bgn` is as accurate as `bn` (A to W)"].verdict == "holds"
    assert verdicts["`bgn` is more accurate than `gn` (W to A)"].claim.margin == pytest.approx(1.3)
