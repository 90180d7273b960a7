"""Norms of anynorm in networks of MONAI."""

import pytest
import torch
from monai.networks.layers.utils import get_norm_layer
from monai.networks.nets import UNet

import anynorm
from anynorm.integrations.monai import register
from anynorm.surgery.find import find_norms
from tests.helpers import same

register()


def unet(norm, dims=2):
    torch.manual_seed(0)
    return UNet(spatial_dims=dims, in_channels=1, out_channels=2, channels=(8, 16), strides=(2,), num_res_units=1, norm=norm)


def test_the_example_of_the_guide():
    import anynorm.integrations.monai

    anynorm.integrations.monai.register()
    model = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(8, 16, 32),
        strides=(2, 2),
        norm=("anynorm", {"spec": "gn:8", "groups": "nearest"}),
    )
    assert {site.label.split(":")[0] for site in find_norms(model)} == {"gn"}
    assert model(torch.rand(2, 1, 16, 16, 16)).shape == (2, 2, 16, 16, 16)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_network_with_bn_has_the_outputs_of_monais(dims):
    plain, model = unet("batch", dims), unet(("anynorm", {"spec": "bn"}), dims)
    model.load_state_dict(plain.state_dict())
    x = torch.rand(2, 1, *[16] * dims, generator=torch.Generator().manual_seed(0))
    same(model(x), plain(x), rtol=1e-4, atol=1e-5)
    same(model.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


def test_registering_again_has_no_effect_and_options_reach_the_layer():
    register()
    norm = get_norm_layer(("anynorm", {"spec": "sn", "eps": 1e-3}), spatial_dims=2, channels=8)
    assert (type(norm), norm.num_features, norm.eps) == (anynorm.SwitchNorm, 8, 1e-3)
