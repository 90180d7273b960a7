"""One thread a process (two processes run), and hypothesis without a clock: the machine is shared."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("anynorm", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("anynorm")
