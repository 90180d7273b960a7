"""A residual network on real images has the same loss curve as it is, fused, and fused and compiled."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import anynorm
from anynorm.lab.data.datasets import load_dataset
from anynorm.lab.models.resnet import small
from tests.helpers import same

STEPS, BATCH, WINDOW = 240, 32, 20


def loss_curve(model, network, images, labels) -> torch.Tensor:
    """Return the loss of each step; `network` is the model or its compiled form."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.thorough
def test_a_network_trains_equally_as_it_is_fused_and_compiled():
    dataset = load_dataset("digits")
    images, labels = dataset.train[0].float() / 255, dataset.train[1]
    torch.manual_seed(0)
    plain: nn.Module = small(dataset.shape, 0.5)
    fused, compiled, control = (copy.deepcopy(plain) for _ in range(3))
    for model in (fused, compiled):
        report = anynorm.fuse(model, images[:4])
        assert report.finding.startswith("7 of 7 activations and 3 additions fused")
    torch.compiler.reset()
    expected = loss_curve(plain, plain, images, labels)
    curves = {
        "fused": loss_curve(fused, fused, images, labels),
        "compiled": loss_curve(compiled, torch.compile(compiled, fullgraph=True), images, labels),
    }
    # Training amplifies rounding errors. The control is the network itself on images that differ by about a rounding error.
    rounding = (loss_curve(control, control, images * (1 + 2**-22), labels) - expected).abs()
    assert expected[-WINDOW:].mean() < 0.3 * expected[:WINDOW].mean()
    for name, curve in curves.items():
        change = (curve - expected).abs()
        same(curve[:WINDOW], expected[:WINDOW], rtol=1e-4, atol=1e-5)  # measured: 5e-7, control 2e-7
        assert change.max() <= 2 * rounding.max(), name  # measured: 0.18 fused, 0.17 compiled, control 0.25
    for model in (fused, compiled):
        same(model.state_dict()["0.1.num_batches_tracked"], torch.tensor(STEPS))
