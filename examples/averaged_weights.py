"""Your model is good in train mode and bad in eval mode: find out whether its running statistics are wrong, and fix them.

Here the weights are an average over the end of training (`torch.optim.swa_utils.AveragedModel`). The averaged network has not
processed any batch, so its running statistics belong to other weights.

python examples/averaged_weights.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel

import anynorm
from anynorm.diagnostics import batch_statistics, estimation_shift

torch.manual_seed(0)
images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
order = torch.randperm(len(images))
train, test = order[:1300], order[1300:]

layers: list[nn.Module] = []
for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
    layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
for epoch in range(3):
    for batch in train[torch.randperm(len(train))].split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if epoch > 0:
            average.update_parameters(model)


@torch.no_grad()
def accuracy(network: nn.Module) -> str:
    """Return the accuracy on the test images."""
    return f"{100 * float((network(images[test]).argmax(1) == labels[test]).float().mean()):.1f} %"


network = average.module.eval()
print("eval mode", accuracy(network))  # statistics of other weights: 51 % on one processor, 80 % on another
with batch_statistics(network):  # norms use the statistics of the batch, as in train mode
    print("statistics of the batch", accuracy(network))
print(estimation_shift(network, images[train].split(100), trial_samples=0).finding)
print(anynorm.recalibrate(network, images[train].split(100)).finding)
print("eval mode", accuracy(network))

# Output:
# eval mode … %
# statistics of the batch 97.8 %
# 3 norms, 1300 samples: 2 norms have a shift of 0.3 or more, … Recalibrate on data like that of inference.
# 3 of 3 norms recalibrated on 1300 samples (pooled); largest change: …
# eval mode 97.6 %
