"""Differences of our layers from torch's that are on purpose, and which cases of torch's own tests show them.

The page docs/migration.md has the sentences, under "Differences from torch"; `test_modules.py` compares.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """A difference from torch.

    Args:
        sentence: what differs and why, as on the page.
        cases: the checks of torch's ModuleInfo cases that show it: "modules: words of the case: checks", with spaces between
            several; none if torch has no such case.
    """

    sentence: str
    cases: str = ""

    def covers(self, row: dict[str, str]) -> bool:
        """Whether a check of a case shows this difference."""
        if not self.cases:
            return False
        modules, words, checks = (part.split() for part in self.cases.split(":"))
        in_case = any(word in row["case"] for word in words)
        return row["module"] in modules and in_case and row["check"] in checks


DIFFERENCES = [
    Difference(
        "`InstanceNorm` with running statistics is not converted: it normalizes by them in inference, which no norm of the "
        "algebra does.",
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d: tracking_stats no_batch_dim: convert",
    ),
    Difference(
        "γ and β of `LayerNorm` over several axes are per channel. One that differs between positions is not converted.",
        "LayerNorm: 3d_elementwise_affine: contiguous strided load_state_dict",
    ),
    Difference("`RMSNorm` over several axes is not converted.", "RMSNorm: 3d_: convert"),
    Difference(
        "A batch without samples is not counted in `num_batches_tracked`, since it changes no statistic.",
        "BatchNorm1d BatchNorm2d BatchNorm3d: zero_batch: contiguous strided",
    ),
    Difference(
        "ε = 0 is allowed in training; ε < 0 raises when the layer is made.", "BatchNorm1d BatchNorm2d BatchNorm3d: 'eps': error"
    ),
    Difference("A `momentum` outside of [0, 1] is kept by `convert`, and refused by `make`."),
    Difference(
        "Running statistics move once per step under activation checkpointing (torch: twice), and not at all in a forward pass "
        "that raises or for a batch with infinite or NaN statistics."
    ),
    Difference(
        "NaN in a state_dict raises `StateError`, with the key. To load it all the same, replace it: "
        "`state_dict[key].nan_to_num_()`."
    ),
    Difference("Inputs of another floating-point dtype than the parameters are normalized, in the dtype of the input."),
    Difference("`torch.jit.script` raises; `torch.export`, `torch.compile`, `torch.fx` and `torch.jit.trace` work."),
]
