"""Norms of anynorm in configurations of mmengine and mmcv (mmcv-lite, which has the same layers)."""

import pytest
import torch
from mmcv.cnn import ConvModule, build_norm_layer
from mmengine.registry import MODELS
from torch import nn

from anynorm.integrations.mmengine import register


def test_the_example_of_the_guide():
    import anynorm.integrations.mmengine

    anynorm.integrations.mmengine.register()
    block = ConvModule(3, 16, 3, norm_cfg={"type": "SN"})
    other = ConvModule(3, 16, 3, norm_cfg={"type": "AnyNorm", "spec": "gn:8", "requires_grad": False})
    assert type(block.norm) is anynorm.SwitchNorm
    assert other.norm.spec == "gn:8"
    assert not other.norm.weight.requires_grad
    assert other(block.eval()(torch.rand(2, 3, 8, 8)).narrow(1, 0, 3)).shape == (2, 16, 4, 4)


def test_layers_of_mmcv_keep_their_names_and_registering_again_has_no_effect():
    names = register()
    assert register() == names
    assert {"AnyNorm", "SN", "HN", "BGN", "SABN"} <= set(names)
    assert type(build_norm_layer({"type": "BN"}, 8)[1]) is nn.BatchNorm2d
    assert type(build_norm_layer({"type": "GN", "num_groups": 2}, 8)[1]) is nn.GroupNorm


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        ({"type": "HN", "num_groups": 4}, "hn:4"),
        ({"type": "BGN", "num_groups": 2}, "bgn:2"),
        ({"type": "AnyNorm", "spec": "gn:32", "groups": "nearest"}, "gn:16"),
    ],
)
def test_the_arguments_of_a_configuration_reach_the_layer(config, spec):
    register()
    _, norm = build_norm_layer(config | {"eps": 1e-3}, 16)
    assert (norm.spec, norm.eps) == (spec, 1e-3)
    assert MODELS.build(config | {"num_features": 16}).spec == spec
