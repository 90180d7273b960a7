"""Norms are found once, chosen by `where`, replaced under all their paths, and restored by undo."""

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.find import choose, find_norms
from tests.surgery.networks import X, network, trained


def test_where_takes_classes_patterns_predicates_and_lists():
    def paths(where):
        return [row["path"] for row in anynorm.convert(network(), "gn:4", where)]

    assert paths("3.*") == ["3.bn1", "3.bn2"]
    assert paths(["1", "4.bn?"]) == ["1", "4.bn1", "4.bn2"]
    assert paths(lambda path, module: module.num_features == 32) == ["4.bn1", "4.bn2", "4.downsample.1"]
    assert len(paths(nn.BatchNorm2d)) == 6
    assert len(paths("all")) == len(paths(["all"])) == 6
    with pytest.raises(anynorm.SurgeryError, match=r"where='3\.bn3' matches no norm\. The model has 6, such as 3\.bn"):
        paths("3.bn3")
    with pytest.raises(anynorm.SurgeryError, match=r"where='4\.bn9' matches no norm"):
        paths(["1", "4.bn9"])
    with pytest.raises(anynorm.SurgeryError, match=r"where must select at least one norm; got \[\]"):
        paths([])


def test_where_all_selects_what_none_selects():
    sites = find_norms(network())
    assert choose(sites, "all") == choose(sites, None) == sites
    with pytest.raises(anynorm.SurgeryError, match="the model has no norm that anynorm recognizes"):
        choose(find_norms(nn.Linear(2, 2)), "all")


def test_shared_modules_stay_shared_and_the_order_of_parameters_stays():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 4, 1), norm, nn.Linear(3, 3))
    shapes = [p.shape for p in model.parameters()]
    report = anynorm.convert(model, "gn:2")
    assert model[1] is model[3]
    assert len(report) == 1
    assert [p.shape for p in model.parameters()] == shapes
    report.undo()
    assert model[1] is norm
    assert model[3] is norm


def test_the_model_itself_may_be_a_norm():
    root = nn.BatchNorm2d(4)
    report = anynorm.convert(root, "gn:2")
    assert report.model.spec == "gn:2"
    assert report.undo() is root


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_wrapped_and_scripted_models_are_refused_with_the_reason():
    class DistributedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    with pytest.raises(anynorm.SurgeryError, match=r"wrapped in DistributedDataParallel.*wrap it afterwards"):
        anynorm.convert(DistributedDataParallel(network()), "bn")
    with pytest.raises(anynorm.SurgeryError, match="TorchScript"):
        anynorm.convert(torch.jit.trace(network().eval(), X), "bn")
    with pytest.raises(anynorm.SurgeryError, match=r"model must be an nn\.Module; got a str"):
        anynorm.convert("resnet", "bn")  # type: ignore[arg-type]


def test_operations_are_undone_in_reverse_order_and_undo_keeps_the_current_mode_dtype_and_optimizer_state():
    model = trained(network())
    optimizer = torch.optim.Adam(model.parameters())
    first = anynorm.convert(model, "gn:4", optimizer=optimizer)
    model(X).sum().backward()
    optimizer.step()
    second = anynorm.convert(model, "ln", where="all")
    with pytest.raises(anynorm.SurgeryError, match="undo the later operation first"):
        first.undo()
    second.undo()
    model.eval().double()
    first.undo()
    assert not model[1].training
    assert model[1].weight.dtype == torch.float64
    assert optimizer.state[model[0].weight]["step"] == 1
    root = nn.BatchNorm2d(3)
    assert anynorm.freeze(root).undo() is root
    assert anynorm.sync(root).undo() is root
