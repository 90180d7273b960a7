"""Norms of several domains that start as copies of one."""

import pytest
import torch
from torch import nn

import anynorm
from anynorm.errors import SurgeryError


def model(*specs, seed=0):
    torch.manual_seed(seed)
    layers: list[nn.Module] = [anynorm.make(spec, 8) for spec in specs]
    network = nn.Sequential(nn.Conv2d(3, 8, 3), *layers)
    for norm in layers:
        for tensor in [*norm.parameters(), *norm.buffers()]:
            if tensor.is_floating_point():
                tensor.data.uniform_(0.5, 2.0)
    return network


def output(network, x, domain):
    with anynorm.condition(network, domain):
        return network.eval()(x)


@pytest.mark.parametrize("spec", ["bn.aux@3", "gn:4.cc@3", "bgn:4.aux@3", "sn.aux@3", "sabn@3", "saauxbn@3", "hn:2.aux@3"])
def test_every_domain_computes_what_the_copied_one_does_which_stays_as_it_is(spec):
    network, x = model(spec, "bn"), torch.randn(4, 3, 6, 6)
    expected = output(network, x, 1)
    others = [output(network, x, domain) for domain in (0, 2)]
    report = anynorm.copy_domain(network, 1)
    for domain in range(3):
        torch.testing.assert_close(output(network, x, domain), expected, rtol=0, atol=0)
    assert report.rows[0]["path"] == "1"
    report.undo()
    for domain, before in zip((0, 2), others, strict=True):
        torch.testing.assert_close(output(network, x, domain), before, rtol=0, atol=0)


def test_statistics_that_classes_share_stay():
    network = model("ccbn@3")
    before = network[1].running_mean.clone()
    report = anynorm.copy_domain(network)
    assert torch.equal(network[1].running_mean, before)
    assert report.rows[0]["copied"] == ["class_weight", "class_bias"]
    assert report.finding == "Domain 0 copied to all other domains in 1 norm."


def test_the_domains_are_parameters_of_their_own_afterwards():
    network = model("bn.aux@2")
    anynorm.copy_domain(network)
    with torch.no_grad():
        network[1].class_weight[1] += 1
    assert not torch.equal(network[1].class_weight[0], network[1].class_weight[1])


def test_models_without_this_domain_are_refused_and_stay_as_they_are():
    with pytest.raises(SurgeryError, match=r"No norm of this Sequential has domains; nothing was changed.*bn\.aux@2"):
        anynorm.copy_domain(model("bn", "gn:4"))
    network = model("bn.aux@3", "bn.aux@2")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(
        SurgeryError, match=r"source must be a domain of every norm; got 2, and '2' \(bn\.aux@2\) has the domains 0 to 1"
    ):
        anynorm.copy_domain(network, 2)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())
