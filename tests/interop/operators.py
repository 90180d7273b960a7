"""Makes torchvision's models run on a build of torchvision that has no operators for the CPU; for tests only.

torchvision registers properties of `nms` and `qnms` when it is imported, so both must be defined before. Its fallback for
RoIAlign compiles itself at the first call; the plain function is enough here.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes that no box with a higher score overlaps, in the order of their scores."""
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept: list[int] = []
    is_left = torch.ones(len(boxes), dtype=torch.bool)
    for index in scores.argsort(descending=True, stable=True).tolist():
        if is_left[index]:
            kept.append(index)
            top_left = torch.maximum(boxes[index, :2], boxes[:, :2])
            bottom_right = torch.minimum(boxes[index, 2:], boxes[:, 2:])
            overlap = (bottom_right - top_left).clamp(min=0).prod(1)
            is_left &= overlap <= iou_threshold * (areas[index] + areas - overlap)
    return torch.tensor(kept, dtype=torch.int64)


def prepare_torchvision() -> None:
    """Define operators for the CPU if those of torchvision cannot be loaded; call it once, before torchvision is imported."""
    spec = find_spec("torchvision")
    folder = Path(spec.submodule_search_locations[0])
    try:
        torch.ops.load_library(next(folder.glob("_C.*")))
    except OSError:  # a build for CUDA beside a torch without CUDA
        _define_operators()


def _define_operators() -> None:
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARY.impl("nms", nms, "CPU")
    boxes: Any = import_module("torchvision.ops.boxes")
    boxes._assert_has_ops = lambda: None
    roi_align: Any = import_module("torchvision.ops.roi_align")
    roi_align._roi_align = roi_align._roi_align.__wrapped__
