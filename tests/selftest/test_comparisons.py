"""A self-test compares every norm, and finds kernels that are wrong."""

import pytest
import torch

import anynorm
from anynorm import kernels
from anynorm.selftest.cases import ACTIVATIONS, SHAPE, Case, make_cases, make_layer, zoo_specs
from anynorm.selftest.comparisons import compare

CPU = torch.device("cpu")
PLAIN = Case("bn", SHAPE, "float32", training=True, activation=None, residual=False)
FULL = Case("bn", SHAPE, "float32", training=True, activation="relu", residual=True)


def wrong_kernel(monkeypatch, change):
    """Replace the C++ kernels by kernels whose output is changed."""
    normalize = kernels.cpu.normalize

    def normalize_wrongly(spec, x, params, buffers):
        y, batch = normalize(spec, x, params, buffers)
        return change(x, y, buffers), batch

    monkeypatch.setattr(kernels.cpu, "normalize", normalize_wrongly)


def wrong_names(comparison):
    return {difference.name for difference in comparison.differences if not difference.is_small}


def test_the_cases_are_all_norms_of_the_zoo_in_every_combination():
    cases = make_cases(zoo_specs(), ["float32", "bfloat16"])
    small = [case for case in cases if case.shape == SHAPE]
    assert {case.spec for case in small} == {entry.spec for entry in anynorm.zoo()}
    assert len(set(small)) == len(anynorm.zoo()) * 2 * 2 * len(ACTIVATIONS) * 2
    assert {case.layouts[-1] for case in small} == {"channels_last"}
    assert {len(case.shape) for case in cases} == {2, 4}


@pytest.mark.parametrize("spec", zoo_specs())
def test_every_norm_agrees_with_the_reference_on_the_cpu(spec):
    for case in (Case(spec, SHAPE, "bfloat16", False, None, False), Case(spec, SHAPE, "float32", True, "silu", True)):
        for comparison in compare(case, CPU):
            assert comparison.agrees, str(comparison)
            assert {"y", "dx", *(["dresidual"] * case.residual)} <= {difference.name for difference in comparison.differences}


def test_gradients_of_parameters_and_styles_and_running_statistics_are_compared():
    names = {difference.name for difference in compare(PLAIN, CPU)[0].differences}
    assert names == {"y", "dx", "dweight", "dbias", "running_mean", "running_var", "num_batches_tracked", "num_batches_skipped"}
    style = compare(Case("saadain", SHAPE, "float32", True, None, False), CPU)[0]
    assert {"dstyle_mean", "dstyle_std"} <= {difference.name for difference in style.differences}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda x, y, buffers: y + 1e-3, {"y"}),
        (lambda x, y, buffers: y + 1e-3 * (x - x.detach()), {"dx"}),
        (lambda x, y, buffers: (buffers.running_stats[0][1].mul_(1.001), y)[1], {"running_var"}),
        (lambda x, y, buffers: y + torch.where(x == x.max(), torch.nan, 0.0), {"y"}),
    ],
)
def test_a_wrong_kernel_is_found_and_the_wrong_tensor_named(monkeypatch, change, names):
    wrong_kernel(monkeypatch, change)
    for comparison in compare(PLAIN, CPU):
        assert not comparison.agrees
        assert wrong_names(comparison) == names
        assert f"bn float32 {comparison.layout} 16x64x8x7 training ({next(iter(names))} by " in str(comparison)


def test_a_kernel_that_is_wrong_in_one_memory_format_is_found_there_alone(monkeypatch):
    wrong_kernel(monkeypatch, lambda x, y, buffers: y if x.is_contiguous() else 1.01 * y)
    assert [comparison.agrees for comparison in compare(FULL, CPU)] == [True, False]


def test_a_kernel_that_raises_or_changes_the_layout_is_reported(monkeypatch):
    def fail(*_):
        raise RuntimeError("no kernel image\nis available")

    wrong_kernel(monkeypatch, lambda x, y, buffers: y.contiguous())
    first, second = compare(PLAIN, CPU)
    assert first.agrees
    assert second.problem.startswith("y has dtype torch.float32 and strides (3584, 56, 7, 1), and x torch.float32")
    wrong_kernel(monkeypatch, fail)
    comparison = compare(FULL, CPU)[0]
    assert str(comparison) == "bn float32 contiguous 16x64x8x7 training + residual + relu (RuntimeError: no kernel image)"
    assert comparison.to_dict()["agrees"] is False


def test_a_pass_that_the_kernels_do_not_support_is_called_one_of_the_reference(monkeypatch):
    assert compare(PLAIN, CPU)[0].kernels == "cpu"
    monkeypatch.setattr(kernels.cpu.library, "normalize", None)
    assert compare(PLAIN, CPU)[0].kernels == "reference"


def test_neither_random_state_nor_the_number_of_threads_changes():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    compare(PLAIN, CPU)
    make_layer("modenorm:2", SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
