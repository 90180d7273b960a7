"""The example of deployment.md: fold the norms of the ResNet-20 of noisy.py, quantize it to int8 with torchao, and compare.

python quantize.py

Weights have one scale per output channel, activations one per tensor, found on 300 training images without labels.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import noisy
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import anynorm


@torch.no_grad()
def quantize(model: nn.Module, batches: list[Tensor]) -> Any:
    """Return a copy of a model with int8 weights and activations, calibrated on batches of images."""
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared: Any = prepare_pt2e(torch.export.export(model, (batches[0],)).module(), quantizer)
    for batch in batches:
        prepared(batch)
    return convert_pt2e(prepared)


def measure(num_images: int = 1000) -> dict[str, dict[str, float]]:
    """Return the accuracy of each version on test images, and the percentage of predictions that agree with float32."""
    noisy.NUM_IMAGES = num_images
    calibration = [x for x, _ in noisy.load_batches("train", dark=False)[:3]]
    model = noisy.network().eval()
    folded = copy.deepcopy(model)
    anynorm.fold(folded, calibration[0][:1])
    versions = {"float32": model, "int8": quantize(model, calibration), "int8, folded": quantize(folded, calibration)}
    rows: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        predictions = {name: [version(x).argmax(1) for x, _ in noisy.day()] for name, version in versions.items()}
    labels, expected = torch.cat([labels for _, labels in noisy.day()]), torch.cat(predictions["float32"])
    for name, classes in predictions.items():
        hits = {"accuracy": torch.cat(classes) == labels, "agreement": torch.cat(classes) == expected}
        rows[name] = {key: 100 * float(values.double().mean()) for key, values in hits.items()}
    return rows


if __name__ == "__main__":
    for name, row in measure().items():
        sys.stdout.write(f"{name:12}  {row['accuracy']:.1f} % correct, {row['agreement']:.1f} % as float32\n")
