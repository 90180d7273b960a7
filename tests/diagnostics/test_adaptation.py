"""Accuracy on new data with source, recalibrated, mixed and batch statistics; the model is left as it was."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.diagnostics import Target, adaptation, batch_statistics, estimation_shift
from anynorm.errors import DiagnosticError, SurgeryError
from tests.helpers import ROWS, condition_for, data, make, same
from tests.surgery.networks import BatchNormAct2d

LABELS = torch.arange(64) % 4
BRIGHT = 4 * torch.eye(4)[LABELS][:, :, None, None] + data(64, 4, 4, 4, mean=0.0, std=0.3)
"""Images whose class is their channel with the largest mean."""
DARK = 0.2 * BRIGHT - torch.tensor([9.0, 0.0, 0.0, 3.0])[:, None, None]
BATCHES = [(DARK[k : k + 16], LABELS[k : k + 16]) for k in range(0, 64, 16)]


def classifier(spec="bn") -> Any:
    """A model that averages over positions after a norm with the statistics of the bright images; in train mode, with dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), anynorm.make(spec, 4), nn.Dropout(0.9), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    anynorm.recalibrate(model, BRIGHT) if spec != "gn:1" else None
    return model.train()


def percentage(model, x):
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == LABELS).double().mean())


def state(model):
    return copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]


def assert_unchanged(model, before):
    for key, value in model.state_dict().items():
        same(value, before[0][key], rtol=0, atol=0)
    assert [module.training for module in model.modules()] == before[1]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("spec", ["bn", "hn:2", "bgn:4", "sn"])
def test_each_column_is_the_accuracy_with_statistics_set_by_hand(spec):
    model = classifier(spec)
    before = state(model)
    report = adaptation(model, [Target("dark", DARK, BATCHES)], source_weight=0.25)
    assert_unchanged(model, before)
    row = report["dark"]
    source = percentage(model.eval(), DARK)
    shift = max(norm["shift"] for norm in estimation_shift(model, DARK, trial_samples=0))
    expected = {"source": source, "shift": shift, "samples": 64}
    norm = model[1].train()
    expected["per_batch"] = sum(100 * float((model(x).argmax(1) == labels).double().mean()) for x, labels in BATCHES) / len(
        BATCHES
    )
    model.load_state_dict(before[0])
    norm.momentum = 1.0
    norm(DARK)
    expected["recalibrated"] = percentage(model.eval(), DARK)
    model.load_state_dict(before[0])
    norm.train().momentum = 0.75
    norm(DARK)
    expected["mixed"] = percentage(model.eval(), DARK)
    assert row == {"data": "dark", **{name: pytest.approx(value) for name, value in expected.items()}}
    assert row["source"] < row["recalibrated"] or spec == "sn"  # IN and LN have no running statistics


def test_the_finding_has_the_means_and_names_the_best_statistics():
    report = adaptation(classifier(), [Target("bright", BRIGHT, [(BRIGHT, LABELS)]), Target("dark", DARK, BATCHES)])
    assert [row["data"] for row in report] == ["bright", "dark"]
    assert report["bright"]["source"] == report["dark"]["recalibrated"] == 100
    source = (100 + report["dark"]["source"]) / 2
    assert report.finding.startswith(
        f"Score in percent on 2 data sets (means): {source:.1f} with the source statistics, 100.0 recal"
    )
    assert report.finding.endswith("Recalibrate on unlabeled data like these: anynorm.recalibrate(model, unlabeled).")
    assert report.worst(1).rows[0]["data"] == "dark"


def test_where_adaptation_does_not_help_the_finding_says_so():
    report = adaptation(classifier(), [Target("bright", DARK, [(BRIGHT, LABELS)])])
    assert report.finding.endswith("Adapting the statistics does not help: the running statistics fit, or the weights do not.")


def test_the_columns_of_norms_without_running_statistics_are_equal_and_the_finding_says_so():
    report = adaptation(classifier("gn:1"), [Target("dark", DARK, BATCHES)])
    row = report["dark"]
    assert row["source"] == row["recalibrated"] == row["mixed"] == row["per_batch"]
    assert row["shift"] is None
    assert report.finding == "No norm has running statistics to adapt (gn:1): the columns are equal."


def test_batches_are_weighted_by_their_sizes_and_labels_of_unlabeled_data_are_not_used():
    model = classifier()
    wrong = torch.zeros(64, dtype=torch.long)
    unequal = [(DARK[:40], LABELS[:40]), (DARK[40:], LABELS[40:])]
    report = adaptation(model, [Target("dark", [(DARK, wrong)], unequal)])
    assert report["dark"]["source"] == pytest.approx(percentage(model.eval(), DARK))
    assert report["dark"]["recalibrated"] == 100
    report = adaptation(model, [Target("dark", DARK, unequal)], score=lambda _, batch: float(len(batch[1])))
    assert report["dark"]["source"] == pytest.approx((40 * 40 + 24 * 24) / 64)


def test_test_batches_of_one_class_are_reported():
    by_class = [(DARK[k::4], LABELS[k::4]) for k in range(4)]
    report = adaptation(classifier(), [Target("dark", DARK, by_class)])
    assert "4 test batches have a single class, whose statistics are not those of the data: shuffle" in report.finding
    assert report["dark"]["per_batch"] < report["dark"]["recalibrated"] == 100


def test_a_custom_forward_and_score_are_used():
    model = nn.Sequential(anynorm.make("auxbn@2", 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(model, batch):
        with anynorm.condition(model, 1):
            return model(batch[0] if isinstance(batch, tuple) else batch)

    target = Target("dark", [DARK], BATCHES)
    report = adaptation(model, [target], forward=forward, score=lambda output, _: 50.0 + 0 * float(output.sum()))
    assert report["dark"]["recalibrated"] == 50


@pytest.mark.parametrize(
    ("unlabeled", "labeled", "message"),
    [
        ([], BATCHES, "The unlabeled data of 'dark' must have at least one batch; got none"),
        (DARK, [], "The labeled data of 'dark' must have at least one batch; got none"),
        (DARK, [DARK], r"Labeled batches must be \(x, labels\); got a Tensor without labels"),
        (3, BATCHES, "The loader must be a tensor or an iterable of batches; got a int"),
    ],
)
def test_wrong_data_are_refused_and_change_nothing(unlabeled, labeled, message):
    model = classifier()
    before = state(model)
    with pytest.raises(DiagnosticError, match=message):
        adaptation(model, [Target("dark", unlabeled, labeled)])
    assert_unchanged(model, before)


def test_wrong_models_and_options_are_refused_and_change_nothing():
    model = classifier()
    before = state(model)
    with pytest.raises(DiagnosticError, match="targets must have at least one entry; got none"):
        adaptation(model, [])
    with pytest.raises(DiagnosticError, match=r"must return a tensor \(n, classes\) to be scored; pass score="):
        adaptation(model[:2], [Target("dark", DARK, BATCHES)])
    with pytest.raises(SurgeryError, match="source_weight must be in"):
        adaptation(model, [Target("dark", DARK, BATCHES)], source_weight=2.0)
    calls = []

    def forward(model, batch):
        calls.append(batch)
        if len(calls) == 12:  # while statistics are adapted
            raise OSError("disk")
        return model(batch[0] if isinstance(batch, tuple) else batch)

    with pytest.raises(OSError, match="disk"):
        adaptation(model, [Target("dark", DARK, BATCHES)], forward=forward)
    assert_unchanged(model, before)


# Batch statistics


@pytest.mark.parametrize("spec", [spec for spec in ROWS if "style" not in spec and spec != "adain"])
def test_batch_statistics_are_those_of_train_mode_and_leave_every_norm_as_it_was(spec):
    norm = make(spec).eval()
    norm.schedule_enabled = False
    x = data(8, 16, 4, 4)
    condition = condition_for(norm, x)
    before = copy.deepcopy(norm)
    with batch_statistics(norm), torch.no_grad():
        actual = norm(x, condition)
    same(actual, copy.deepcopy(before).train()(x, condition).detach())
    assert not norm.training
    for key, value in norm.state_dict().items():
        same(value, before.state_dict()[key], rtol=0, atol=0)


def test_batch_statistics_switch_neither_dropout_nor_frozen_norms_and_end_with_an_error():
    model: Any = nn.Sequential(BatchNormAct2d(3), nn.Dropout(0.5), anynorm.make("bn", 3))
    model[0].drop = nn.Dropout(0.9)
    anynorm.freeze(model.eval(), "2")
    x = data(4, 3, 4, 4, mean=5.0)

    def use():
        with batch_statistics(model):
            assert [model[0].training, model[0].drop.training, model[1].training] == [True, False, False]
            same(model[2](x), x, rtol=1e-4, atol=1e-4)
            assert model[0](x).mean() < 1
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        use()
    assert not any(module.training for module in model.modules())
    same(model[0].running_mean, torch.zeros(3))
