"""Configuration of the tests: one thread per process, hypothesis without deadlines (the machine may be shared), slow tests first.

Slow tests run first so that no test process is idle at the end. Triton kernels run in Triton's interpreter; its environment
variable must be set before the first import of Triton. Features of images are cached in the temporary directory. The tests in
tests/interop are collected only if ANYNORM_INTEROP is set, as `make interop` does: in its environment, a package that cannot be
imported is a failure, which a skip would hide.

Some virtual machines report AMX instructions but cannot execute them. oneDNN uses them for bfloat16, and the process would be
killed by SIGILL. On such machines, oneDNN is limited to AVX-512, here and in the processes that tests start.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(16, 64).bfloat16())"


def has_broken_amx() -> bool:
    """Whether a matrix product in bfloat16 kills a process; False in workers of pytest-xdist, whose main process has checked."""
    if "PYTEST_XDIST_WORKER" in os.environ or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    return subprocess.run([sys.executable, "-c", PROBE], check=False, capture_output=True).returncode == -signal.SIGILL


if has_broken_amx():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("ANYNORM_DATA", str(Path(tempfile.gettempdir()) / "anynorm-test-cache"))

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.time_per_file import TimePerFile  # noqa: E402

torch.set_num_threads(1)
collect_ignore = [] if os.environ.get("ANYNORM_INTEROP") else ["interop"]
settings.register_profile(
    "anynorm",
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the choice of kernels is the same for every example
)
settings.load_profile("anynorm")


def pytest_configure(config):
    config.pluginmanager.register(TimePerFile())


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
