"""Every test of the core runs with the CPU kernels where they fit, and with the reference; tracing has the reference alone."""

import pytest

from anynorm import kernels

TRACED = (
    "compile",
    "export",
    "onnx",
    "inductor",
    "trace",
    "process",
    "rank",
    "ddp",
    "vmap",
    "forward_mode",
    "first_and_second_order",
)


def pytest_generate_tests(metafunc):
    traced = any(word in metafunc.function.__name__ for word in TRACED)
    metafunc.parametrize("kernel", ["auto"] if traced else ["auto", "reference"], indirect=True)


@pytest.fixture(autouse=True)
def kernel(request):
    with kernels.use(request.param):
        yield
