"""You train with two samples per step, and BatchNorm fails: replace it, and compare the accuracy of other norms.

The result of BatchNorm depends on rounding errors (41 or 44 % correct), since its statistics in the last layer are computed from
two values.

python examples/small_batches.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import anynorm

BATCH_SIZE = 2


def build_model() -> nn.Sequential:
    """Build your model, with nn.BatchNorm2d."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def accuracy(norm: str | None) -> float:
    """Train for one epoch with BatchNorm replaced by a norm (None to keep BatchNorm), and return the accuracy in percent."""
    torch.manual_seed(0)
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images))
    train, test = order[:1000], order[1000:]
    model = build_model()
    if norm is not None:
        anynorm.convert(model, norm, batch_size=BATCH_SIZE)  # bgn chooses its number of groups from batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for batch in train.split(BATCH_SIZE):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return 100 * float((model.eval()(images[test]).argmax(1) == labels[test]).float().mean())


if __name__ == "__main__":
    for norm in (None, "bgn", "hn:8"):
        print(f"{norm or 'nn.BatchNorm2d':15} {accuracy(norm):5.1f} % of the test images correct")

# Output:
# nn.BatchNorm2d   … % of the test images correct
# bgn              88.8 % of the test images correct
# hn:8             91.5 % of the test images correct
