"""Times per step are measured once per configurations, versions and hardware."""

from dataclasses import replace

import pytest
import torch

from anynorm.lab.tasks import timing
from anynorm.lab.tasks.timing import step_times
from anynorm.lab.training.config import Config
from anynorm.lab.training.provenance import provenance

QUICK = Config(model="small", width=0.5, num_train=64, batch_size=16, epochs=1, lr=0.05)
PAIR = [QUICK, replace(QUICK, norm="gn:4")]


@pytest.fixture
def measured(monkeypatch):
    """Calls that train, instead of training."""
    calls = []

    def measure(configs, _):
        calls.append([config.norm for config in configs])
        return {config.norm: float(len(calls)) for config in configs}

    monkeypatch.setattr(timing, "_measure", measure)
    return calls


def test_norms_that_cannot_be_trained_are_left_out_and_the_number_of_threads_is_restored():
    torch.set_num_threads(2)
    try:
        times = step_times([QUICK, replace(QUICK, batch_size=128, norm="hn")])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert list(times) == ["bn"]
    assert 0 < times["bn"] < 10


def test_a_second_call_does_not_train(tmp_path, measured):
    first = step_times(PAIR, tmp_path)
    assert step_times(PAIR, tmp_path) == first == {"bn": 1.0, "gn:4": 1.0}
    assert step_times(PAIR[::-1], tmp_path) == first
    assert len(measured) == 1
    assert step_times(PAIR) == {"bn": 2.0, "gn:4": 2.0}  # not cached without a store
    assert step_times(PAIR, tmp_path / "other") == {"bn": 3.0, "gn:4": 3.0}


def test_other_configurations_versions_or_hardware_are_measured_again(tmp_path, measured, monkeypatch):
    step_times(PAIR, tmp_path)
    step_times([replace(config, batch_size=8) for config in PAIR], tmp_path)
    step_times([*PAIR, replace(QUICK, norm="sn")], tmp_path)  # compared with each other, so measured together
    assert measured[1:] == [["bn", "gn:4"], ["bn", "gn:4", "sn"]]
    here = provenance()
    for change in ({"torch": "9.9"}, {"hardware": "abacus"}, {"commit": "0000000"}):
        monkeypatch.setattr(timing, "provenance", lambda change=change: here | change)
        step_times(PAIR, tmp_path)
        step_times(PAIR, tmp_path)
    assert len(measured) == 6


def test_a_damaged_cache_is_measured_again(tmp_path, measured):
    step_times(PAIR, tmp_path)
    (path,) = (tmp_path / "timings").iterdir()
    for content in ("", "{", "[]", '{"seconds": 3}', '{"seconds": {"bn": "fast"}}'):
        path.write_text(content)
        step_times(PAIR, tmp_path)
    assert len(measured) == 6
