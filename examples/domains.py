"""You train one network on two domains, with each batch from one domain: use separate running statistics per domain.

The domains are digits, and negatives of the digits with less contrast and noise. In training, BatchNorm uses the statistics of
one domain per batch. Its running statistics mix both domains and fit neither. `condition` sets the domain of all norms.

python examples/domains.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import anynorm

torch.manual_seed(0)
images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
domains = {"digits": images, "negatives": 1 - 0.5 * images + 0.05 * torch.randn(images.shape)}
order = torch.randperm(len(images))
train, test = order[:1000], order[1000:]


def train_model(norm: str) -> nn.Module:
    """Train a small network with alternating batches of both domains."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), anynorm.make(norm, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in train[torch.randperm(len(train))].split(40) * 4:
        for domain, x in enumerate(domains.values()):
            optimizer.zero_grad()
            with anynorm.condition(model, domain, strict=False):  # strict=False: bn has no condition
                nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


for norm in ("bn", "auxbn@2", "saauxbn@2"):
    model = train_model(norm)
    text = f"{norm:10}"
    for domain, (name, x) in enumerate(domains.items()):
        with torch.no_grad(), anynorm.condition(model, domain, strict=False):
            correct = model(x[test]).argmax(1) == labels[test]
        text += f"   {name} {100 * float(correct.float().mean()):.1f} %"
    print(text)

# Output:
# bn           digits 55.7 %   negatives 45.0 %
# auxbn@2      digits 97.0 %   negatives 94.7 %
# saauxbn@2    digits 96.5 %   negatives 94.6 %
