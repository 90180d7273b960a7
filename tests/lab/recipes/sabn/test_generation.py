"""The recipe sabn_generation: results of a run, controls, and which claims a preset can make."""

import pytest

from anynorm.lab.recipes.sabn.generation.claims import claims, controls
from anynorm.lab.recipes.sabn.generation.results import closed_gap, mean_of_curve, median_ratio, real_to_first_score, summarize
from anynorm.lab.recipes.sabn.generation.settings import MANY, PRESETS, stages
from anynorm.lab.recipes.support.controls import Learned
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.recipes.support.verdicts import judge
from tests.lab.recipes.comparisons import noise

CURVE = [
    {
        "step": step, "train_generator_loss": 0.5, "test_FD (ResNet-32)": 8.0 / step, "test_class score (ResNet-32)": 2.0 + step,
        "test_class accuracy (ResNet-32)": 10.0 * step, "test_real class accuracy (ResNet-32)": 50.0,
        "test_real class score (ResNet-32)": 6.0, "train_g_inter linear (eval mode)": 0.2 * step,
    }
    for step in (1, 2, 4)
]  # fmt: skip


def rows(relative_accuracy, scores=(2.0, 4.0)):
    """Return rows of `night` in which SaBN is better than CCBN in everything."""
    settings, result = PRESETS["night"], []
    for network, config in settings.networks.items():
        for factor, norm in ((1.0, "CCBN"), (0.8, "SaBN")):
            for seed in range(6):
                value = factor * (1 + noise([network, norm, seed]))
                curves = {
                    f"{column} {stage} ({mode} mode)": [value, value]
                    for column in ("grad_norm_std", "g_inter")
                    for stage in stages(config)
                    for mode in ("train", "eval")
                }
                curves |= {"class_score": [score / value for score in scores]}
                row = {"network": network, "norm": norm, "seed": seed, "failure": "", "fd": value, "generator_loss": value}
                row |= {"class_score": scores[-1] / value, "real_class_score": 6.0, "curves": curves}
                result.append(row | {"relative_class_accuracy": relative_accuracy})
    return result


def judged(data):
    settings = PRESETS["night"]
    return judge(claims(settings), controls(settings), data, None)


def test_a_row_has_the_accuracies_of_generated_and_real_images():
    row = summarize(CURVE, "resnet32", num_last_evals=2)
    assert row["fd"] == pytest.approx((4 + 2) / 2)
    assert row["best_fd"] == 2
    assert row["class_accuracy"] == 30
    assert row["relative_class_accuracy"] == 60
    assert row["real_class_score"] == 6
    assert row["g_inter eval"] == pytest.approx(0.2 * 7 / 3, rel=1e-4)
    assert mean_of_curve("g_inter linear (eval mode)")(row) == pytest.approx(0.2 * 7 / 3, rel=1e-4)
    assert closed_gap(row) == pytest.approx(100)  # from 3 to 6, the score of real images
    assert closed_gap({"curves": {"class_score": [4.0, 3.0]}, "real_class_score": 6.0}) == -50
    assert closed_gap({"curves": {"class_score": [7.0, 8.0]}, "real_class_score": 6.0}) is None
    assert real_to_first_score(row) == pytest.approx(2)
    assert real_to_first_score({"curves": {"class_score": [2.0]}}) is None  # a record without real images


def test_a_generator_that_ignores_its_class_is_not_a_fair_test():
    assert {each.verdict for each in judged(rows(80.0))} == {"holds"}
    verdicts = judged(rows(30.0))
    assert {each.verdict for each in verdicts} == {"not a fair test"}
    assert "class accuracy of generated images (% of that of real ones)" in verdicts[0].note


@pytest.mark.parametrize("scores", [(5.8, 6.5), (4.0, 3.0), (3.0, 3.2)])
def test_a_score_by_which_real_images_are_not_better_or_that_hardly_rises_is_no_measure(scores):
    verdicts = {each.claim.statement: each.verdict for each in judged(rows(80.0, scores))}
    assert {verdict for statement, verdict in verdicts.items() if "class score" in statement} == {"not a fair test"}
    assert {verdict for statement, verdict in verdicts.items() if "class score" not in statement} == {"holds"}


def test_gradients_are_compared_by_stage_and_for_single_latents():
    night = claims(PRESETS["night"])
    cosines = [claim for claim in night if f"({MANY})" in claim.statement and "cosine" in claim.statement]
    assert len(cosines) == 2 * len(stages(PRESETS["night"].networks[MANY])) == 6
    assert {claim.level.value for claim in cosines} == {"stage"}
    assert len({claim.group for claim in cosines}) == 1
    for preset in ("night", "paper"):
        for config in PRESETS[preset].networks.values():
            assert (options_of(config).balance_batch_size, options_of(config).balance_classes) == (1, 0)


def test_that_spreads_are_mostly_lower_is_a_claim_about_the_median_over_stages():
    assert median_ratio(3.0, 2.0, 1.0, 1.0, 1.0, 4.0) == 2
    (claim,) = (claim for claim in claims(PRESETS["night"]) if claim.source.place == "Fig. 2a")
    assert "in most stages, train mode" in claim.statement
    assert claim.sides[0].at(rows(80.0), 0) == pytest.approx(1 / 0.8, rel=0.03)


def test_gradients_in_eval_mode_are_claims_of_ours():
    for claim in claims(PRESETS["paper"]):
        if "eval mode" in claim.statement:
            assert not claim.source.paper


def test_distance_and_score_of_the_same_images_are_counted_once():
    quality = [claim for claim in claims(PRESETS["night"]) if claim.group == f"quality of the images of {MANY}"]
    assert [claim.source.place for claim in quality] == ["Table 1, ImageNet", "Table 1, ImageNet", "Fig. 3 right"]


def test_the_desk_makes_no_claim_about_cosines_of_averaged_gradients_or_ten_clusters_of_airplanes():
    desk = [claim for claim in claims(PRESETS["desk"]) if "class gradient" in claim.statement]
    assert desk
    assert not any("cosine" in claim.statement or MANY in claim.statement for claim in desk)
    assert any("BigGAN" in claim.statement for claim in desk)


def test_the_claims_of_figs_2_and_3_are_the_papers_for_its_network_and_ours_for_others():
    for claim in claims(PRESETS["paper"]):
        if claim.source.place.startswith("Fig."):
            assert f"({MANY})" in claim.statement
    places = {claim.source.place for claim in claims(PRESETS["paper"])}
    assert places == {"", "Table 1, CIFAR-10", "Table 1, ImageNet", "Fig. 2a", "Fig. 2b", "Fig. 3 left", "Fig. 3 right"}


def test_published_numbers_are_compared_with_fid_and_is_alone():
    assert all(claim.published is None for claim in claims(PRESETS["night"]))
    published = [claim for claim in claims(PRESETS["paper"]) if claim.published is not None]
    assert len(published) == 8
    assert any("IS of SaBN is larger than of CCBN (BigGAN)" in claim.statement for claim in published)
    names = [control.name for control in controls(PRESETS["paper"]) if not isinstance(control, Learned)]
    assert all("needs the last layer of Inception" in name for name in names)


def test_the_stages_are_the_linear_layer_and_the_blocks():
    networks = PRESETS["paper"].networks
    assert stages(networks["SNGAN"]) == ["linear", "blocks.0", "blocks.1", "blocks.2"]
    assert len(stages(networks[MANY])) == 6
