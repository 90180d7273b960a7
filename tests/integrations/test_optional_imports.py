"""Integrations without the packages that they are for, and with stand-ins that have their signatures."""

import sys
import types
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import anynorm
from anynorm.integrations import lightning, mmengine, monai, opacus, timm, transformers
from anynorm.integrations.loaders import isolated_loader, to_device
from anynorm.integrations.optional_imports import MissingPackageError, base_class
from tests.surgery.detectors import get_norm


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (lambda: timm.norm_act_layer("gn:8"), "timm"),
        (monai.register, "monai"),
        (mmengine.register, "mmengine"),
        (opacus.register, "opacus"),
    ],
)
def test_a_missing_package_is_named_with_its_installation(call, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"needs {package}\..*, which cannot be imported: pip install {package}\."):
        call()
    assert issubclass(MissingPackageError, ImportError)


@pytest.mark.parametrize(
    ("module", "call", "package"),
    [
        (lightning, lightning.Recalibration, "lightning"),
        (lightning, lightning.EstimationShiftMonitor, "lightning"),
        (transformers, transformers.RecalibrationCallback, "transformers"),
        (transformers, lambda: transformers.EstimationShiftCallback(None), "transformers"),
    ],
)
def test_a_callback_without_its_package_cannot_be_made(module, call, package, monkeypatch):
    name = "Callback" if package == "lightning" else "TrainerCallback"
    monkeypatch.setattr(module, name, object)
    with pytest.raises(
        MissingPackageError, match=f"This callback needs {package}, which cannot be imported: pip install {package}"
    ):
        call()


def test_the_base_class_is_that_of_a_loaded_module_before_others(monkeypatch):
    loaded: Any = types.ModuleType("loaded_package")
    loaded.Decimal = type("Decimal", (), {})
    monkeypatch.setitem(sys.modules, "loaded_package", loaded)
    monkeypatch.delitem(sys.modules, "numbers", raising=False)
    assert base_class("Decimal", "numbers", "loaded_package") is loaded.Decimal
    assert base_class("Decimal", "missing_package") is object


def test_get_norm_of_detectron2_takes_the_function_of_a_spec():
    norm = get_norm(anynorm.layer("gn:4"), 8)
    assert (type(norm), norm.spec, norm.num_features) == (anynorm.GroupNorm, "gn:4", 8)


# Loaders


def batch_order(loader):
    return torch.cat([batch[0] for batch in loader]).tolist()


@pytest.mark.parametrize("has_generator", [False, True])
def test_an_isolated_loader_leaves_random_numbers_and_the_position_as_they_were(has_generator):
    data = TensorDataset(torch.arange(12))
    generator = torch.Generator().manual_seed(3) if has_generator else None
    sampler = RandomSampler(data, generator=generator)
    loader = DataLoader(data, batch_size=4, sampler=sampler, generator=generator)

    def run(peek):
        torch.manual_seed(0)
        if generator is not None:
            generator.manual_seed(3)
        order = []
        for index, batch in enumerate(loader):
            order += batch[0].tolist()
            if peek and index == 1:
                with isolated_loader(loader) as other:
                    assert sorted(batch_order(other)) == list(range(12))
        return order, batch_order(loader), torch.rand(1).item()

    assert run(peek=True) == run(peek=False)


def make_loader(count, **options):
    samples: Any = list(range(count))
    return DataLoader(samples, **options)


def test_random_numbers_are_restored_after_an_error():
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), isolated_loader(make_loader(1)):
        1 / int(0 * torch.rand(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("loader", [None, [make_loader(1)], {"a": make_loader(1)}])
def test_a_collection_of_loaders_is_refused(loader):
    with pytest.raises(anynorm.DataError, match=f"Expected one data loader; got {type(loader).__name__}"):
        with isolated_loader(loader):
            pass


def test_the_loader_inside_that_of_accelerate_is_used():
    inner = make_loader(2)
    with isolated_loader(types.SimpleNamespace(base_dataloader=inner)) as loader:
        assert loader is inner


def test_tensors_of_any_mapping_are_moved():
    batch = types.MappingProxyType({"x": torch.zeros(1), "y": [torch.zeros(1), "name"]})
    moved = to_device(batch, "meta")
    assert moved["x"].is_meta
    assert moved["y"][0].is_meta
    assert moved["y"][1] == "name"


# Stand-ins


def test_callbacks_of_transformers_recalibrate_only_before_an_evaluation(monkeypatch):
    monkeypatch.setattr(transformers, "TrainerCallback", nn.Module)
    model: Any = nn.Sequential(nn.BatchNorm1d(3))
    model.forward = lambda x: nn.Sequential.forward(model, x)
    batch = {"x": torch.randn(32, 3, generator=torch.Generator().manual_seed(0)) + 2}
    callback = transformers.RecalibrationCallback(forward=lambda model, batch: model(batch["x"]))
    step = partial(callback.on_step_end, None, None, model=model, train_dataloader=make_loader(1, collate_fn=lambda _: batch))
    step(types.SimpleNamespace(should_evaluate=False))
    assert float(model[0].running_mean.abs().max()) == 0
    step(types.SimpleNamespace(should_evaluate=True))
    assert torch.allclose(model[0].running_mean, batch["x"].mean(0), atol=1e-5)
