"""BatchNorms of torch are synchronized as anynorm layers; `tests/layers/test_distributed.py` runs several processes."""

import copy

from torch import nn

import anynorm
from tests.helpers import same
from tests.surgery.networks import X, network, trained


def test_batch_norms_of_torch_are_replaced_by_synchronized_layers_and_restored_by_undo():
    model = trained(network())
    expected = copy.deepcopy(model)(X)
    report = anynorm.sync(model)
    assert len(report) == 6
    assert model[1].sync_group == model[3].bn1.sync_group != anynorm.make("bn", 4).sync_group
    same(model(X), expected, rtol=1e-4, atol=1e-5)
    assert len(anynorm.sync(model, on=False)) == 6
    assert model[1].sync_group == anynorm.make("bn", 4).sync_group
    report.undo()
    assert isinstance(model[1], nn.BatchNorm2d)


def test_synchronized_norms_keep_their_parameter_objects():
    model = trained(network())
    weights = [model[1].weight, model[3].bn1.bias]
    anynorm.sync(model)
    assert model[1].weight is weights[0]
    assert model[3].bn1.bias is weights[1]
