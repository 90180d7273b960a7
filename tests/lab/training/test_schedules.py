"""Schedules of the learning rate: their values, their texts, and the names that stored runs have."""

import math
from typing import Any

import pytest

from anynorm.errors import SpecError
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.schedules import (
    OLD_NAMES,
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Inverse,
    Polynomial,
    Schedule,
    Step,
    parse_schedule,
)

ALL: list[Schedule] = [
    Constant(),
    Step(),
    Step((2 / 3, 8 / 9)),
    Step((1 / 3, 2 / 3, 5 / 6), (0.06, 0.012, 0.0024)),
    Cosine(),
    Cosine(0.04),
    Exponential(),
    Polynomial(),
    Inverse(),
    Exponential(0.5),
    Polynomial(2.0),
    Inverse(3.0),
]


def _steps(*milestones):
    return lambda progress: 0.1 ** sum(progress >= milestone for milestone in milestones)


BY_NAME = {
    "constant": lambda _: 1.0,
    "step": _steps(0.5, 0.75),
    "step-quarters": _steps(0.25, 0.5, 0.75),
    "step-25-75": _steps(0.25, 0.75),
    "step-38-75": _steps(3 / 8, 3 / 4),
    "step-67-89": _steps(2 / 3, 8 / 9),
    "step-30-60-90": _steps(0.3, 0.6, 0.9),
    "step-thirds": lambda progress: (1.0, 0.06, 0.012, 0.0024)[sum(progress >= start for start in (1 / 3, 2 / 3, 5 / 6))],
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "cosine-to-0.04": lambda progress: 0.04 + 0.96 * (1 + math.cos(math.pi * progress)) / 2,
    "exponential": lambda progress: 0.01**progress,
    "poly": lambda progress: (1 - progress) ** 0.9,
    "inverse": lambda progress: 1 / (1 + 8 * progress),
}
"""The schedules of stored runs by name, and their definitions when these runs were trained."""


@pytest.mark.parametrize("name", BY_NAME)
def test_a_stored_name_is_the_same_schedule_to_the_last_bit(name):
    schedule = parse_schedule(name)
    for progress in [k / 90 for k in range(91)]:
        assert schedule.factor(progress) == BY_NAME[name](progress)
    assert set(OLD_NAMES) <= set(BY_NAME)


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_a_schedule_is_read_from_its_text(schedule):
    assert parse_schedule(str(schedule)) == schedule
    assert schedule.factor(0.0) == 1.0
    assert 0 <= schedule.factor(0.99) <= 1.0
    assert {type(each) for each in ALL} == set(SCHEDULES.values())


def test_a_run_has_one_id_however_its_schedule_is_given():
    texts: list[Any] = [Step((2 / 3, 8 / 9)), "step:2/3,8/9", "step-67-89"]
    assert {Config(schedule=each).schedule for each in texts} == {"step:2/3,8/9"}
    assert len({config_from_dict({"schedule": each}).id for each in texts}) == 1
    assert Config(schedule=Cosine()).id == Config(schedule="cosine").id == Config().id


@pytest.mark.parametrize("text", ["cosin", "step:", "step:a", "step:0.5,,", "cosine:x", "constant:3", "poly:0.9,2"])
def test_a_text_without_meaning_is_refused(text):
    with pytest.raises(SpecError, match=r"schedule must be one of constant step cosine .*, with its numbers"):
        Config(schedule=text)


@pytest.mark.parametrize("milestones", [(), (0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (0.75, 0.5)])
def test_milestones_must_increase(milestones):
    with pytest.raises(SpecError, match=r"milestones must be increasing numbers in \(0, 1\)"):
        Step(milestones)
