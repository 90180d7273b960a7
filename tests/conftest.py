"""One thread a process (two processes run), and hypothesis without a clock: the machine is shared."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "anynorm",
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the choice of kernels is the same for every example
)
settings.load_profile("anynorm")
