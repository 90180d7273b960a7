"""One thread per test process, hypothesis without deadlines (the machine is shared), and slow tests first.

With the long tests at the end one of the two processes would wait for the other. Triton kernels run in Triton's interpreter,
which reads the variable when Triton is imported first. Features of images are cached in the temporary directory. The tests in
tests/interop need the environment of `make interop`, which sets ANYNORM_INTEROP: there a package that cannot be imported is a
failure, which a skip would hide.
"""

import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("ANYNORM_DATA", str(Path(tempfile.gettempdir()) / "anynorm-test-cache"))

import torch
from hypothesis import HealthCheck, settings

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


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
