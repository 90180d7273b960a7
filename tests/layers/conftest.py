"""Every test of the layers runs twice: with the CPU kernels where they support the pass, and with the reference kernels.

Tests marked `reference_only` trace, transform or synchronize, so that the reference runs in any case: they run once.
"""

import pytest

from anynorm import kernels


def pytest_generate_tests(metafunc):
    once = metafunc.definition.get_closest_marker("reference_only") is not None
    metafunc.parametrize("kernel", ["auto"] if once else ["auto", "reference"], indirect=True)


@pytest.fixture(autouse=True)
def kernel(request):
    with kernels.use(request.param):
        yield
