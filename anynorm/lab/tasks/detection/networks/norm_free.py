"""Parts of a detector without norms: their convolutions have biases, as in the first detectors with a pyramid (Lin et al. 2017).

Without a norm, the scale of the weights matters: convolutions before a ReLU are initialized as by He et al. (2015), those of the
pyramid so that their outputs have the variance of their inputs, and that of the RPN with standard deviation 0.01 (Detectron).
"""

from __future__ import annotations

import torch
from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.tasks.detection.networks.detector import Detector
from anynorm.lab.tasks.detection.networks.fpn import init_predictor
from anynorm.lab.tasks.detection.networks.rpn import RPN

PARTS = ("fpn", "heads", "heads.rpn", "heads.box", "heads.mask")
"""The parts that can be built without norms."""


def remove_norms(detector: Detector, path: str) -> None:
    """Replace each norm of a part by the identity, and give the convolution before it a bias, in place.

    Args:
        detector: a detector with BatchNorm everywhere.
        path: one of `PARTS`.

    Raises:
        SpecError: if the detector does not have the part, or the part has a stage of the backbone (C4).
    """
    parts = {name: part for name, part in detector.named_modules() if name in PARTS}
    if path not in parts:
        raise SpecError(f"norm_free must be parts of the detector; got {path!r}. Usable: {' '.join(parts)}.")
    for module in list(parts[path].modules()):
        if isinstance(module, RPN):
            _add_bias(module.conv)
            init_predictor(module.conv, std=0.01)
            module.norms = nn.ModuleList(nn.Identity() for _ in module.norms)
        elif isinstance(module, nn.Sequential) and len(module) > 1:
            conv, norm, *activation = module
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                _add_bias(conv)
                _init(conv, before_relu=bool(activation))
                module[1] = nn.Identity()
    if any(isinstance(module, nn.BatchNorm2d) for module in parts[path].modules()):
        raise SpecError(f"norm_free cannot be {path!r} in a detector of type C4: its box head is a stage of the backbone.")


def _add_bias(conv: nn.Conv2d) -> None:
    conv.bias = nn.Parameter(torch.zeros(conv.out_channels))


def _init(conv: nn.Conv2d, *, before_relu: bool) -> None:
    if before_relu:
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    else:
        nn.init.kaiming_uniform_(conv.weight, a=1)
