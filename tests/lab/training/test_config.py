"""Configurations: which runs are the same, what is refused, how the learning rate falls."""

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

import anynorm
from anynorm.lab.training.config import Config, config_from_dict


def test_equal_configurations_have_one_id_and_others_another():
    config = Config()
    assert len(config.id) == 12
    assert replace(config, num_evals=20, num_test=None).id == config.id == config_from_dict(asdict(config)).id
    changed: list[dict[str, Any]] = [
        {"num_evals": 1},
        {"num_test": 10},
        {"stop_epoch": 1},
        {"seed": 1},
        {"flip": True},
        {"lr": 0.2},
        {"width": 1.0},
    ]
    assert len({config.id, *(replace(config, **values).id for values in changed)}) == 1 + len(changed)


def test_an_integer_and_the_equal_float_are_one_run():
    assert Config(lr=1) == Config(lr=1.0)
    assert Config(lr=1, width=2).id == Config(lr=1.0, width=2.0).id


def test_an_id_depends_on_the_fields_that_differ_from_their_defaults_alone():
    """So a field that is added later leaves the ids of existing runs as they are."""
    changed = json.dumps({"lr": 0.5, "norm": "sn"}, sort_keys=True)
    assert Config(norm="sn", lr=0.5).id == hashlib.sha256(changed.encode()).hexdigest()[:12]


def test_the_defaults_are_those_that_stored_runs_were_identified_by():
    """If this fails, a default was changed: increase `anynorm.lab.training.record.VERSION`, and adapt the test."""
    assert asdict(Config()) == {
        "data": "digits", "model": "small", "norm": "bn", "width": None, "num_train": None, "batch_size": 32,
        "grad_accum_steps": 1, "epochs": 10, "optimizer": "sgd",
        "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
        "warmup_epochs": 0.0, "label_smoothing": 0.0, "mixup": 0.0, "crop": 0, "flip": False, "cutout": 0, "precision": "32",
        "ema_decay": 0.0, "devices": 1, "sync": False, "seed": 0, "image_size": 64, "source_hash": "", "num_test": None,
        "num_evals": 20, "stop_epoch": None, "task": "classification", "options": {}, "nesterov": False, "decay_norms": True,
        "min_area": 0.0, "color_jitter": 0.0, "skip_unreadable": False, "compile": False, "num_validation": 0, "morph_from": "",
        "initialization": "default",
    }  # fmt: skip


def test_warmup_multiplies_the_schedule():
    config = Config(lr=0.5, warmup_epochs=2.0, epochs=10)
    assert config.lr_at(0.1) == pytest.approx(0.25 * (1 + 0.9510565) / 2, rel=2e-3)
    assert config.lr_at(0.0) > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "bm"}, "unknown norm"),
        ({"norm": "xbn.p4=gn:4"}, r"an XBN layout must be xbn=SPEC .* got 'xbn\.p4=gn:4'\. Usable: xbn=gn:64"),
        ({"schedule": "cosin"}, "schedule must be one of constant step cosine .*; got 'cosin'"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd adam adamw; got 'lion'"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"lr": 0.0}, r"lr must be greater than 0; got 0\.0"),
        ({"label_smoothing": 3}, r"label_smoothing must be in \[0, 1\); got 3"),
        ({"crop": -1}, "crop must be 0 or more; got -1"),
        ({"epochs": 3, "stop_epoch": 4}, "stop_epoch must be between 1 and epochs=3; got 4"),
        ({"epochs": 3, "stop_epoch": 0}, "stop_epoch must be between 1 and epochs=3; got 0"),
        ({"batchsize": 3}, r"A run has no setting 'batchsize'\. Did you mean batch_size\?"),
    ],
)
def test_invalid_values_are_refused(values, message):
    with pytest.raises(anynorm.SpecError, match=message):
        config_from_dict(values)


def test_a_width_that_is_not_positive_raises():
    with pytest.raises(anynorm.SpecError, match=r"width must be greater than 0; got -1\.0"):
        Config(width=-1.0)
