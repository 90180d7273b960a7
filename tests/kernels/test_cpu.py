"""The C++ kernels compute what the reference computes, save x alone, and work with forks, threads and without a compiler."""

import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from anynorm import kernels
from anynorm.kernels import cpu
from tests.helpers import condition_for, data, make, same
from tests.kernels.common import LIVE, UNFIT_FOR_VECTORS, UNSUPPORTED, results, saved_tensors

ZERO_MEAN = ["rms", "0/bn.nobias", "0/in", "0/gn:2.sa@3", "0/sn:2", "0/bn+gbgn:2,2", "0/sn.aux@3"]


def both(norm, x, condition=None):
    """Output, gradients and state by each of the two."""
    return [results(norm, x, condition, name) for name in ("reference", "cpu")]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("spec", LIVE)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", ["rows", "channels_last", "vectors", "video"])
def test_every_norm_on_the_fast_path_is_the_reference(spec, training, layout):
    shape = {"rows": (4, 16, 6, 8), "channels_last": (4, 16, 6, 8), "vectors": (4, 16), "video": (4, 16, 2, 4, 4)}[layout]
    x = data(*shape)
    x = x.to(memory_format=torch.channels_last) if layout == "channels_last" else x
    norm = make(spec)
    norm.train(training)
    if layout == "vectors" and spec in UNFIT_FOR_VECTORS[training]:
        with pytest.raises(anynorm.ShapeError, match=r"more than one value per statistic|equal strips"):
            norm(x, condition_for(norm, x))
        return
    reference, cpu = both(norm, x, condition_for(norm, x))
    alone = layout == "vectors" and spec in (
        "in",
        "adain",
        "saadain",
        "ilmin",
        "ilmadain",
    )  # var 0: 1/sqrt(eps), to cancel
    scale = max(norm.eps**-0.5 if alone else 1.0, *(float(t.abs().max()) for t in reference[:2]))
    for a, b in zip(reference, cpu, strict=True):
        same(b, a, rtol=1e-4, atol=2e-5 * scale)


@given(
    spec=st.sampled_from(
        [
            "bn",
            "in",
            "ln",
            "gn:2",
            "en:2",
            "hn:2",
            "sn",
            "sn:2",
            "sn.hard",
            "bn/bn+en",
            "gbgn:2,2",
            "sabn@3",
            "sn.aux@3",
            *ZERO_MEAN,
        ]
    ),
    samples=st.integers(1, 3),
    channels=st.sampled_from([2, 4, 6]),
    space=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    last=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.integers(1, 2),
)
def test_any_shape_format_dtype_and_thread_count_is_the_reference(spec, samples, channels, space, last, dtype, threads):
    x = data(2 * samples, channels, *space).to(dtype)
    if last and x.dim() > 3:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    norm = make(spec, channels=channels)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        reference, cpu = both(norm, x, condition_for(norm, x))
    except anynorm.ShapeError as error:
        single_value = math.prod(space) == 1 and (spec == "in" or (spec == "gn:2" and channels == 2))
        too_few = x.shape[0] == 2 and math.prod(space) == 1 and spec == "sn.aux@3"  # one value per domain
        assert single_value or too_few, error
        assert "more than one value" in str(error)
        return
    finally:
        torch.set_num_threads(before)
    scale = max(1.0, float(reference[1].float().abs().max()))
    digits = 2e-5 if dtype == torch.float32 else 2e-2
    for a, b in zip(reference, cpu, strict=True):
        same(b.float(), a.float(), rtol=10 * digits, atol=digits * scale)


@pytest.mark.parametrize("last", [False, True])
def test_at_a_mean_of_ten_thousand_deviations_and_in_rows_of_a_million_six_digits_hold(last):
    x = data(2, 4, 1000, 1000, mean=1e4, std=1.0)
    x = x.to(memory_format=torch.channels_last) if last else x
    exact = x.double().flatten(2)
    norm = anynorm.make("bn", 4, momentum=1.0, dtype=torch.float32)
    with kernels.use("cpu"):
        y = norm(x)
    mean, var = exact.mean((0, 2)), exact.var((0, 2), correction=0)
    expected = (exact - mean[:, None]) / (var[:, None] + norm.eps).sqrt()
    same(y.flatten(2).double(), expected, rtol=1e-6, atol=1e-6)
    same(norm.running_var.double(), exact.var((0, 2)), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("spec", ["sn", "gn:4", "ln", "ln+bn", "in+gn:4", "sn.aux@3", "ln/bn+ln"])
@pytest.mark.parametrize("mean", [1e4, torch.tensor([1e4, -1e4]).repeat(48)[:, None]])
def test_vectors_at_a_mean_of_ten_thousand_deviations_have_the_values_and_gradients_of_float64(spec, mean):
    x = (data(96, 20) + mean).float()  # 20 channels: vectors and a rest
    found = {}
    for dtype, name in ((torch.float64, "reference"), (torch.float32, "cpu")):
        norm, given = make(spec, channels=20).to(dtype), x.to(dtype).requires_grad_()
        with kernels.use(name):
            y = norm(given, condition_for(norm, x))
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).cos().reshape(y.shape)).sum().backward()
        found[name] = [y.detach(), given.grad, *(p.grad for p in norm.parameters() if p.grad is not None)]
    for expected, actual in zip(found["reference"], found["cpu"], strict=True):
        same(actual.double(), expected, rtol=1e-5, atol=1e-5 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("spec", ["gn:4/in", "bn/in", "ln/in", "ln/bn", "in+ln/in", "ln/gn:4", "bn/gn:4", "ln/bgn:32", "sn"])
@pytest.mark.parametrize("layout", ["rows", "channels_last", "vectors"])
@pytest.mark.parametrize("value", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_constant_rows_groups_and_channels_have_the_gradients_of_float64(spec, layout, value, backend):
    if layout == "vectors" and ("in" in spec or "32" in spec):
        pytest.skip("one value per statistic")
    x = data(8, 20) if layout == "vectors" else data(4, 20, 6, 6)
    x[1, 3] = x[:, 5] = x[2, 10:15] = value
    x = x.to(memory_format=torch.channels_last) if layout == "channels_last" else x
    grads = []
    for dtype, name in ((torch.float64, "reference"), (torch.float32, backend)):
        norm, leaf = make(spec.replace("32", "40"), channels=20).to(dtype), x.to(dtype, copy=True).requires_grad_()
        with kernels.use(name):
            y = norm(leaf)
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).cos().reshape(y.shape)).sum().backward()
        grads.append(leaf.grad.double())
    same(grads[1], grads[0], rtol=1e-5, atol=2e-6 * max(1.0, float(grads[0].abs().max())))


@pytest.mark.parametrize("spec", ["bn", "sn", "pn", "pn/bgn:16"])
@pytest.mark.parametrize("shape", [(4, 16, 1, 1), (4, 16, 1, 1, 1), (4, 16, 1, 5), (1, 16, 4, 4), (4, 16, 1)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_the_output_has_the_strides_of_the_input_in_axes_of_length_1_too(spec, shape, last, backend):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = data(*shape).contiguous(memory_format=formats[len(shape)] if last and len(shape) > 3 else torch.contiguous_format)
    if last and len(shape) > 3:
        x = torch.empty_like(x, memory_format=formats[len(shape)]).copy_(x)
    with kernels.use(backend):
        y = make(spec)(x)
    assert y.stride() == x.stride()


@pytest.mark.parametrize("spec", ["bn", "sn", "gn:8", "hn:8", "sabn@3", "auxbn@3", "gbgn:2,4"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_two_threads_give_the_reference_and_the_same_bits_from_run_to_run(spec, memory_format, two_threads):
    x = data(6, 16, 40, 40).to(memory_format=memory_format)  # more values than one thread takes
    norm = make(spec)
    reference, first = both(norm, x, condition_for(norm, x))
    _, second = both(norm, x, condition_for(norm, x))
    scale = max(1.0, *(float(t.abs().max()) for t in reference[:2]))
    for expected, a, b in zip(reference, first, second, strict=True):
        assert torch.equal(a, b)
        same(a, expected, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("spec", ["bn", "sn", "hn:8", "bgn:32", "gn:8"])
def test_nothing_the_size_of_x_is_saved_but_x(spec):
    norm, x = make(spec), data(4, 16, 16, 16).requires_grad_()
    y, saved = saved_tensors(norm, x, "cpu")
    assert sum(t.numel() == x.numel() for t in saved) == 1
    assert any(t.data_ptr() == x.data_ptr() for t in saved)
    assert sum(t.numel() * t.element_size() for t in saved) <= 1.05 * x.numel() * x.element_size()
    y.sum().backward()


@pytest.mark.parametrize("spec", ["bn", "sn", "hn:4", "gn:4", "sn.hard"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nan_and_infinity_go_where_the_reference_lets_them(spec, value, memory_format):
    x = data(4, 16, 4, 4).to(memory_format=memory_format)
    x[0, 0, 0, 0] = value
    reference, cpu = both(make(spec), x)
    for a, b in zip(reference, cpu, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


@pytest.mark.parametrize("spec", ["sn", "gn:4"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_in_vectors_go_where_the_reference_lets_them(spec, value):
    x = data(8, 16)
    x[3, 5] = value
    reference, cpu = both(make(spec), x)
    for a, b in zip(reference, cpu, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


@pytest.mark.parametrize("spec", ["sn.hard", "ln/bn+ln.hard"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_in_vectors_do_not_pass_through_a_cut_without_weight(spec, value):
    x = data(8, 16)
    x[3, 5] = value
    norm = make(spec)
    for logits in (norm.mean_weight, norm.var_weight):
        if logits is not None:
            torch.nn.init.constant_(logits.data[1], 2.0)  # ln has all the weight, bn none
    y, grad, *_ = results(norm, x, None, "cpu")
    others = torch.arange(8) != 3
    assert y[others].isfinite().all()
    assert grad[others].isfinite().all()


def test_second_derivatives_are_those_of_the_reference():
    results = []
    for name in ("reference", "cpu"):
        norm, x = make("sn"), data(4, 16, 4, 4).requires_grad_()
        with kernels.use(name):
            (grad,) = torch.autograd.grad((norm(x) ** 3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((grad**2).sum(), [x, *norm.parameters()]))
    for a, b in zip(*results, strict=True):
        same(b, a, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["ilmin", "modenorm:2", "ilmgn:4"])
def test_second_derivatives_of_norms_whose_affine_depends_on_x_are_those_of_the_reference(spec):
    results = []
    for name in ("reference", "auto"):
        norm, x = make(spec), data(4, 16, 4, 4).requires_grad_()
        with kernels.use(name):
            (grad,) = torch.autograd.grad((norm(x) ** 3).sum(), x, create_graph=True)
        results.append([grad, *torch.autograd.grad((grad**2).sum(), x)])
    for a, b in zip(*results, strict=True):
        same(b, a, rtol=1e-3, atol=1e-3 * float(a.detach().abs().max()))


def test_a_layer_used_twice_has_the_same_second_derivatives_as_on_the_reference():
    results = []
    for name in ("reference", "cpu"):
        norm, x = make("gn:4"), data(4, 16, 4, 4).requires_grad_()
        with kernels.use(name):
            (grad,) = torch.autograd.grad((norm(norm(x)) ** 3).sum(), norm.weight, create_graph=True)
        results.append([grad, *torch.autograd.grad((grad**2).sum(), [x, norm.weight])])
    for a, b in zip(*results, strict=True):
        same(b, a, rtol=1e-3, atol=1e-3 * float(a.detach().abs().max()))


@pytest.mark.parametrize(("spec", "channels"), [("sn", 1), ("in+gn:8", 8), ("in+ln+gn:8", 8)])
def test_several_cuts_with_one_value_per_statistic_are_the_reference(spec, channels):
    norm, x = make(spec, channels=channels).eval(), data(6, channels)
    reference, cpu = both(norm, x)
    scale = max(norm.eps**-0.5, *(float(t.abs().max()) for t in reference[:2]))
    for a, b in zip(reference, cpu, strict=True):
        same(b, a, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("spec", ["auxbn@2", "bn.dom@2"])
def test_a_domain_without_samples_leaves_the_gradients_finite_without_eps(spec):
    norm, x = make(spec, eps=0.0), data(8, 16, 4, 4)
    norm(x, torch.arange(8) % 2)
    reference, cpu = both(norm, x, torch.zeros(8, dtype=torch.long))
    for a, b in zip(reference, cpu, strict=True):
        assert b.isfinite().all()
        same(b, a, rtol=1e-4, atol=1e-4 * max(1.0, float(a.abs().max())))


def test_weights_that_a_layer_computes_have_gradients_where_they_are_zero():
    norm, x = make("bn", channels=8), data(4, 8, 4, 4)
    spec = kernels.interface.ForwardSpec.decode(
        [2, 0, 1, 0, 1, 0, 1, 1, 1, 2, 0, 1, 2, 0, 1, 2, 1, 0, 0, 0, 0, 0, 1],
        norm._params(None),
        8,
        eps=1e-5,
        slope=0.0,
        group="",
    )  # bn and in with precomputed weights
    grads = []
    for name in ("reference", "cpu"):
        weight = torch.tensor([1.0, 0.0], requires_grad=True)
        params = norm._params(None)._replace(mean_weight=weight, var_weight=torch.tensor([0.5, 0.5]))
        with kernels.use(name):
            y, _ = kernels.normalize(spec, x, params, kernels.interface.Buffers(((None, None), (None, None)), None))
        grads.append(torch.autograd.grad((y**3).sum(), weight)[0])
    assert grads[0][1] != 0
    same(grads[1], grads[0], rtol=1e-4, atol=1e-3)


def test_a_saved_input_that_a_hook_returns_with_other_strides_gives_the_same_gradient():
    norm, x = make("sn"), data(4, 16, 6, 6)
    grads = []
    for unpack in (lambda tensor: tensor, lambda tensor: torch.stack([tensor, tensor], -1)[..., 0]):
        leaf = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack), kernels.use("cpu"):
            norm(leaf).pow(2).sum().backward()
        grads.append(leaf.grad)
    same(grads[1], grads[0], rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("x", "spec", "reason"),
    [*UNSUPPORTED, (torch.zeros(2, 16, 4, dtype=torch.float16), "bn", "the input has dtype torch.float16")],
)
def test_what_the_kernels_do_not_do_is_refused_when_asked_for_and_done_by_the_reference_otherwise(x, spec, reason):
    with pytest.raises(anynorm.AnynormError, match=f"The cpu kernels do not support this pass: .*{reason}"), kernels.use("cpu"):
        make(spec)(x)
    if not x.is_meta:
        make(spec)(x)
    message = r"name must be 'auto', 'reference', 'cpu' or 'gpu'; got 'tpu'"
    with pytest.raises(anynorm.AnynormError, match=message), kernels.use("tpu"):
        pass


def test_weights_changed_between_forward_and_backward_are_an_error_as_in_torch():
    norm, x = make("bn"), data(4, 16, 4, 4).requires_grad_()
    y = norm(x)
    with torch.no_grad():
        norm.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_two_python_threads_run_different_layers_at_once(two_threads):
    norms = [make(spec).eval() for spec in ("sn", "gn:8")]
    x = data(8, 16, 32, 32)
    expected = [norm(x) for norm in norms]
    wrong: list[int] = []

    def work(k):
        torch.set_num_threads(2)
        for _ in range(40):
            if not torch.equal(norms[k](x), expected[k]):
                wrong.append(k)

    running = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    start = "import torch, anynorm\nfrom anynorm import kernels\n"
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        timeout=100,
        cwd=environment.get("HOME"),
    )


FORKED = """
import multiprocessing, os
torch.set_num_threads(2)
norm, x = anynorm.make("sn", 16).eval(), torch.randn(8, 16, 32, 32)
expected = norm(x)
def work(pipe):
    pipe.send((norm(x).detach().numpy() == expected.detach().numpy()).all())  # torch's own operators wait forever here
ours, theirs = multiprocessing.get_context("fork").Pipe()
child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,))
child.start()
assert ours.poll(60) and ours.recv()
child.join()
assert child.exitcode == 0
class Set(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, k): return norm(x)[k].detach()
batches = list(torch.utils.data.DataLoader(Set(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
assert torch.equal(torch.cat(batches), expected[:4])
"""


def test_a_forked_child_and_data_workers_run_layers_after_their_parent_did():
    done = run(FORKED)
    assert done.returncode == 0, done.stderr


THREADS = """
import os
torch.set_num_threads(int(os.environ["COUNT"]))  # may start threads of its own
before = len(os.listdir("/proc/self/task"))
norm, x = anynorm.make("sn", 16), torch.zeros(8, 16, 64, 64)
with kernels.use("cpu"), torch.no_grad(): norm(x)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("count", [1, 2])
def test_a_pass_uses_as_many_threads_as_torch_is_set_to(count):
    done = run(THREADS, COUNT=str(count))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == count - 1


@pytest.mark.parametrize(
    "first",
    [
        "with torch.inference_mode(): norm(x)",
        "checkpoint(norm, x.requires_grad_(), use_reentrant=False).sum().backward()",
        "checkpoint(norm, x.requires_grad_(), use_reentrant=True).sum().backward()",
        "with torch.device('meta'): norm(x)",
        "torch.set_default_dtype(torch.float64); norm(x)",
        "with torch.autocast('cpu', dtype=torch.bfloat16): norm(x)",
    ],
)
def test_the_first_pass_of_all_may_be_anywhere(first):
    done = run(
        "import warnings\nfrom torch.utils.checkpoint import checkpoint\nwarnings.simplefilter('error', UserWarning)\n"
        f"norm, x = anynorm.make('sn', 8), torch.randn(2, 8, 4, 4)\n{first}\nassert kernels.cpu.library.normalize is not None\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def copied_package(tmp_path):
    """The package in another folder, as an environment of its own, and the path of its library."""
    package = tmp_path / "site" / "anynorm"
    shutil.copytree(Path(anynorm.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (library,) = (package / "kernels").glob("_native-torch*.so")
    return {"PYTHONPATH": str(package.parent), "HOME": str(tmp_path)}, library


WARNINGS = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(3): y = anynorm.make('sn', 8)(torch.randn(2, 8, 4, 4))
assert len(caught) == 1, caught
print(caught[0].message)
try:
    with kernels.use('cpu'): anynorm.make('sn', 8)(torch.randn(2, 8, 4, 4))
except anynorm.AnynormError as error:
    print(error)
"""


def broken_library(library):
    library.write_bytes(b"not a library")
    return "cannot be loaded"


def library_for_another_torch(library):
    wanted = library.stem.removeprefix("_native-")
    library.rename(library.with_name("_native-torch2.6.0-cpython-310.so"))
    return f"they were built for torch2.6.0-cpython-310, and {wanted} is installed"


def failed_build(library):
    library.unlink()
    library.with_name("_build_error.txt").write_text("g++ was not found\n")
    return "g++ was not found"


def no_build(library):
    library.unlink()
    return "they were not built"


@pytest.mark.parametrize("spoil", [broken_library, library_for_another_torch, failed_build, no_build])
def test_without_the_library_the_reference_runs_and_one_warning_has_the_reason(spoil, copied_package):
    env, library = copied_package
    reason = spoil(library)
    done = run(WARNINGS, **env)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()
    assert first.startswith("anynorm runs without its C++ kernels: ")
    assert reason in first
    assert "pip install --no-build-isolation" in first
    assert "The cpu kernels do not support this pass: they are not available" in second


SPEC = make("sn", channels=8)._forward_spec().encoded
GOOD = {
    "x": torch.ones(2, 8, 4),
    "params": [torch.ones(8), torch.ones(8), None, None, torch.ones(3), torch.ones(3), None, None, None],
    "running_stats": [None] * 6,
    "labels": None,
    "spec": SPEC,
    "eps": 1e-5,
    "slope": 0.0,
    "group": "",
    "num_batches": None,
    "num_skipped": None,
    "momentum": -1.0,
}


def call_operator(arguments):
    """Call the operator of eager code."""
    assert cpu.is_available()  # loads the library
    settings, tensors = [[arguments[name] for name in names] for names in (SETTINGS, TENSORS)]
    x, params, running_stats, *rest = tensors
    return cpu.library.normalize(cpu.library.define(*settings), x, tuple(params), tuple(running_stats), *rest)


SETTINGS, TENSORS = (
    ("spec", "eps", "slope", "group"),
    ("x", "params", "running_stats", "labels", "num_batches", "num_skipped", "momentum"),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.ones(2, 8, 4, dtype=torch.float64)}, "float32 or bfloat16"),
        ({"x": torch.ones(8)}, "dense CPU tensor"),
        ({"x": torch.ones(2, 6, 4)}, "weight must have shape"),
        ({"params": [torch.ones(7), *GOOD["params"][1:]]}, "weight must have shape"),
        ({"params": [torch.ones(8, dtype=torch.long), *GOOD["params"][1:]]}, "floating-point"),
        ({"params": [*GOOD["params"][:4], None, None, None, None, None]}, "several cuts need mixing weights"),
        ({"params": GOOD["params"][:5]}, "9 parameters are needed"),
        ({"spec": SPEC[:-1]}, "too short"),
        ({"spec": [1, 3, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]}, "does not fit the input"),
        ({"spec": [1, 0, 1, 0, 1, 1, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]}, "no cut 9"),
        ({"spec": [1, 0, 1, 0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]}, "cut 0 occurs twice"),
        ({"spec": [1, 0, 1, 0, 1, 1, 0, 1, 0, 7, 1, 0, 0, 0, 0, 0, 1]}, "no mixing rule 7"),
        ({"spec": [1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 3, 0, 0, 0, 0, 0, 1]}, "3 groups do not divide 8 channels"),
        ({"spec": [1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 2, 3, 0, 0, 0, 1]}, "2 domains and 3 classes do not fit"),
        ({"spec": [1, -1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]}, "negative parts"),
        ({"spec": [1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 9, 1]}, "no activation 9"),
        ({"params": [*GOOD["params"][:8], torch.ones(2, 1, 4)]}, "residual must have the shape, dtype and device of the input"),
        ({"x": torch.ones(2, 0)}, "groups do not divide 0 channels"),
        ({"running_stats": []}, "running statistics of 3 cuts are needed"),
        ({"group": "nonsense"}, "group"),
    ],
)
def test_bad_arguments_of_the_operator_raise(changes, message):
    call_operator(GOOD)
    with pytest.raises(RuntimeError, match=message):
        call_operator(GOOD | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.ones(2, 8, 4, device="meta")},
        {"x": torch.ones(2, 8, 4).as_subclass(type("Subclass", (torch.Tensor,), {}))},
        {"params": [torch.ones(8, dtype=torch.float64), *GOOD["params"][1:]]},
        {"params": [torch.ones(8, device="meta"), *GOOD["params"][1:]]},
    ],
)
def test_tensors_that_the_operator_does_not_support_are_left_to_the_reference(changes):
    assert call_operator(GOOD | changes) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_plans_is_limited_when_every_pass_needs_another_plan():
    x, numbers = torch.ones(1, 4096, 1), make("ln", channels=4096)._forward_spec().encoded
    assert cpu.is_available()

    def megabytes_after(passes):
        for k in passes:
            definition = cpu.library.define(numbers, 1e-5 * (1 + k / 1e6), 0.0, "")
            cpu.library.normalize(definition, x, (None,) * 9, (None, None), None, None, None, -1.0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    assert -megabytes_after(range(1500)) + megabytes_after(range(1500, 6000)) < 20  # 74 without a limit


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 3]), torch.tensor([0, -1]), torch.tensor([0]), torch.tensor([0.0, 1.0]), None]
)
def test_labels_out_of_range_raise_in_the_operator(labels):
    norm = make("auxbn@3", channels=8)
    changes = {"params": norm._params(None), "running_stats": [None, None], "spec": norm._forward_spec().encoded}
    with pytest.raises(RuntimeError, match="label"):
        call_operator(GOOD | changes | {"labels": labels})
