"""Feature extraction by torch.fx, of torchvision and timm, from networks whose norms are ours."""

import copy
from typing import Any

import pytest
import timm
import torch
from timm.models._features_fx import FeatureGraphNet
from torchvision.models import get_model
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import anynorm
from tests.helpers import same

X = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.sample
@pytest.mark.parametrize("spec", ["bn", "hn:8", "gn:8"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_torchvision_extracts_features_of_a_converted_network(name, spec):
    torch.manual_seed(0)
    plain = get_model(name).eval()
    model = copy.deepcopy(plain)
    anynorm.convert(model, spec)
    assert get_graph_node_names(model) == get_graph_node_names(plain)
    names = get_graph_node_names(model)[1]
    wanted = [names[len(names) // 3], names[-1]]
    with torch.no_grad():
        features = create_feature_extractor(model, wanted)(X)
        expected = create_feature_extractor(plain, wanted)(X)
        same(features[wanted[-1]], model(X))
        if spec == "bn":
            for key in wanted:
                same(features[key], expected[key], rtol=1e-3, atol=1e-4)


@pytest.mark.sample
@pytest.mark.parametrize("spec", ["bn", "hn:8", "gn:8"])
def test_timm_extracts_features_of_a_converted_network(spec):
    torch.manual_seed(0)
    plain: Any = timm.create_model("resnet18").eval()
    hooked: Any = timm.create_model("resnet18", features_only=True).eval()
    hooked.load_state_dict(plain.state_dict(), strict=False)
    model = copy.deepcopy(plain)
    anynorm.convert(model, spec), anynorm.convert(hooked, spec)
    with torch.no_grad():
        traced = FeatureGraphNet(model, (1, 2, 3))(X)
        for ours, theirs in zip(traced, hooked(X)[1:4], strict=True):
            same(ours, theirs, rtol=1e-4, atol=1e-5)
