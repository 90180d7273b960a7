"""Differentially private training of networks with norms of anynorm."""

import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import anynorm
from anynorm.integrations.opacus import register
from tests.helpers import ROWS, same

# Opacus itself, about its hooks and its random numbers
pytestmark = [pytest.mark.filterwarnings("ignore:Full backward hook"), pytest.mark.filterwarnings("ignore:Secure RNG")]
register()
X = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 0, 1, 1, 0])
SPECS = [spec for spec in ROWS if list(anynorm.make(spec, 16).parameters())]
PER_SAMPLE = [spec for spec in SPECS if not anynorm.make(spec, 16).pools_samples and not anynorm.make(spec, 16).takes_condition]
CONDITIONAL = [spec for spec in SPECS if not anynorm.make(spec, 16).pools_samples and spec not in PER_SAMPLE]
POOLED = [spec for spec in SPECS if anynorm.make(spec, 16).pools_samples]


def network(spec):
    torch.manual_seed(0)
    norm = anynorm.make(spec, 16)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    return nn.Sequential(nn.Conv2d(3, 16, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


@pytest.mark.parametrize("spec", PER_SAMPLE)
def test_norms_of_each_sample_are_valid(spec):
    assert ModuleValidator.validate(network(spec)) == []


@pytest.mark.parametrize("spec", POOLED)
def test_norms_that_pool_over_samples_are_reported_with_the_reason(spec):
    (error,) = ModuleValidator.validate(nn.Sequential(nn.Conv2d(3, 16, 3), anynorm.make(spec, 16)))
    assert "pools over samples" in str(error)
    assert 'anynorm.convert(model, "gn:32", groups="nearest")' in str(error)


@pytest.mark.parametrize("spec", CONDITIONAL)
def test_norms_with_a_condition_are_reported_and_replaced(spec):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), anynorm.make(spec, 16))
    (error,) = ModuleValidator.validate(model)
    assert "takes a condition" in str(error)
    assert ModuleValidator.is_valid(ModuleValidator.fix(model, num_groups=4))


@pytest.mark.parametrize("spec", PER_SAMPLE)
def test_gradients_of_each_sample_are_those_of_a_loop(spec):
    model = network(spec)
    expected = []
    for x, y in zip(X, Y, strict=True):
        gradients = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        expected.append(gradients)
    wrapped = GradSampleModule(model)
    cross_entropy(wrapped(X), Y).backward()
    for index, parameter in enumerate(model.parameters()):
        same(parameter.grad_sample, torch.stack([gradients[index] for gradients in expected]), rtol=1e-4, atol=1e-5)


def test_fixing_replaces_pooled_norms_by_gn_with_their_affine():
    model = network("hn:4")
    fixed = ModuleValidator.fix(model, num_groups=4)
    assert fixed[1].spec == "gn:4"
    same(fixed[1].weight, model[1].weight)
    assert ModuleValidator.is_valid(fixed)
    assert not ModuleValidator.is_valid(model)
    assert type(ModuleValidator.fix(network("ln"))[1]) is anynorm.LayerNorm


def test_the_example_of_the_guide():
    import anynorm.integrations.opacus

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    before = model[0].weight.detach().clone()

    anynorm.integrations.opacus.register()
    anynorm.convert(model, "gn:8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    torch.manual_seed(0)
    for x, y in loader:
        optimizer.zero_grad()
        if len(x):
            cross_entropy(model(x), y).backward()
            optimizer.step()
    assert not torch.equal(model._module[0].weight, before)


def test_a_pooled_norm_is_refused_by_the_privacy_engine():
    model = network("hn:4")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    with pytest.raises(Exception, match="hn:4 pools over samples"):
        PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
