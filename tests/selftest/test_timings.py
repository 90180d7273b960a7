"""Times of a self-test: devices, rounds and derived quantities."""

import pytest
import torch
from torch import nn

from anynorm.errors import DataError, SpecError
from anynorm.selftest import devices
from anynorm.selftest.devices import Timer, find_device
from anynorm.selftest.timings import TORCH_LAYERS, TimedCase, Timing, _torch_layer, make_timed_cases, median_times, time_case

CPU = torch.device("cpu")
CASE = TimedCase("bn", (4, 32, 6, 6), "float32", "contiguous", "relu")


class ScriptedTimer(Timer):
    """A timer that returns given times, and records the order of the calls."""

    def __init__(self, times):
        super().__init__(CPU)
        self.times = iter(times)

    def seconds(self, call):
        call()
        return next(self.times)


def test_calls_alternate_and_the_median_is_returned():
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = median_times(calls, ScriptedTimer([1, 10, 3, 30, 2, 20]), rounds=3)
    assert times == {"a": 2, "b": 20}
    assert "".join(order) == "aabb" + 3 * "ab"


def test_bytes_per_second_and_the_share_of_a_copy_follow_from_the_times(monkeypatch):
    monkeypatch.setattr("anynorm.selftest.timings.median_times", lambda *_: {"ours": 2e-6, "torch": 4e-6, "copy": 0.5e-6})
    timing = time_case(CASE, CPU)
    size = 4 * 32 * 6 * 6 * 4
    assert timing.ratio == 0.5
    assert timing.copy_share == pytest.approx(1.0)
    assert timing.gigabytes_per_second == pytest.approx(8 * size / 2e-6 / 1e9)


def test_every_norm_is_timed_against_a_layer_of_torch():
    for spec, (name, _) in [*TORCH_LAYERS.items(), ("sn", ("nn.BatchNorm2d", None))]:
        timing = time_case(TimedCase(spec, (8, 32, 8, 8), "bfloat16", "channels_last", None), CPU, rounds=1)
        assert timing.problem == ""
        assert timing.torch_layer == name
        assert timing.seconds > 0
    assert isinstance(list(_torch_layer(CASE, 32).children())[1], nn.ReLU)
    assert len(make_timed_cases(["bn", "gn:32"], ["float32"], (4, 32, 6, 6))) == 2 * 2 * 2


def test_norms_with_parameters_that_are_not_trained_are_timed():
    assert time_case(TimedCase("sn.hard", (4, 32, 6, 6), "float32", "contiguous", None), CPU, rounds=1).problem == ""


def test_a_pass_that_raises_is_reported():
    timing = time_case(TimedCase("gbgn:8,32", (4, 32, 6, 6), "float32", "contiguous", None), CPU)
    assert timing.ratio is None
    assert timing.problem.startswith("ShapeError: ")
    assert timing == Timing(timing.case, "nn.BatchNorm2d", problem=timing.problem)


@pytest.mark.parametrize("name", ["meta", "tpu", "cuda:x"])
def test_a_device_that_cannot_be_tested_is_refused(name):
    with pytest.raises(SpecError, match=rf"device must be auto, cuda, xpu, mps, cpu, .* such as cuda:1; got '{name}'\."):
        find_device(name)


def test_a_missing_device_is_refused_with_those_of_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DataError, match=r"device cuda is not available; this machine has .*cpu\. `anynorm info` prints"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    with pytest.raises(DataError, match=r"device cuda:2 is not available"):
        find_device("cuda:2")


def test_the_time_on_a_gpu_is_that_between_two_events_after_waiting_for_earlier_work(monkeypatch):
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait for event")

        def elapsed_time(self, end):
            return 1500.0

    class Device:
        def __init__(self, device):
            log.append(str(device))

        def __enter__(self):
            pass

        def __exit__(self, *_):
            log.append("leave")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    assert Timer(torch.device("cuda:1")).seconds(lambda: log.append("call")) == 1.5
    assert log == ["cuda:1", "wait", "record", "call", "record", "wait for event", "leave"]


def test_other_devices_are_waited_for_before_and_after_a_call(monkeypatch):
    log: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: log.append("wait"))
    assert Timer(torch.device("mps")).seconds(lambda: log.append("call")) >= 0
    assert log == ["wait", "call", "wait"]
    assert devices.timed_shape(torch.device("mps")) == devices.GPU_SHAPE
