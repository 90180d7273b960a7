"""Callbacks in a real Trainer of lightning and pytorch_lightning."""

from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import anynorm
from anynorm.integrations.lightning import EstimationShiftMonitor, Morphing, Recalibration
from tests.helpers import same

# Lightning itself: loaders without workers, and few batches
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
QUIET: Any = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
QUIET |= {"accelerator": "cpu"}
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(64, 3, 6, 6, generator=GENERATOR) * 2 + 1, torch.randint(2, (64,), generator=GENERATOR)


class Module(pl.LightningModule):
    def __init__(self, norm="bn"):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make(norm, 8), nn.Dropout(), nn.Flatten(), nn.Linear(128, 2))
        self.modes, self.means, self.seen = [], [], []

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, _):
        self.modes.append(self.network.training)
        self.seen.append(batch[1])
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.modes.append(self.network.training)
        if self.network[1].running_mean is not None:
            self.means.append(self.network[1].running_mean.clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def loaders(**options):
    data = TensorDataset(X, Y)
    return DataLoader(data, batch_size=16, shuffle=True, **options), DataLoader(data, batch_size=32)


def fit(module, callbacks, *, train=None, **options):
    default_train, val = loaders()
    settings = {
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "logger": False,
    }
    trainer = pl.Trainer(callbacks=callbacks, **settings | {"enable_checkpointing": False} | options)
    torch.manual_seed(1)
    trainer.fit(module, train or default_train, val)
    return trainer


def population_mean(module):
    """The mean that the norm of a module sees over all training samples, with the present weights."""
    with torch.no_grad():
        return module.network[0](X).transpose(0, 1).flatten(1).mean(1)


def test_validation_uses_the_statistics_of_the_current_weights():
    module = Module()
    fit(module, [Recalibration(batches=None)])
    same(module.means[-1], population_mean(module), rtol=1e-4, atol=1e-5)
    plain = Module()
    fit(plain, [])
    assert float((plain.means[-1] - population_mean(plain)).abs().max()) > 1e-3
    assert module.modes == plain.modes


def test_recalibration_does_not_change_the_batches_or_the_weights_of_training():
    module, plain = Module(), Module()
    fit(module, [Recalibration(batches=2), EstimationShiftMonitor(batches=1)], val_check_interval=2)
    fit(plain, [], val_check_interval=2)
    same(torch.stack(module.seen), torch.stack(plain.seen))
    same(module.network[4].weight, plain.network[4].weight)


def test_persistent_workers_keep_their_position():
    module = Module()
    train, _ = loaders(num_workers=1, persistent_workers=True)
    fit(module, [Recalibration(batches=1)], train=train, val_check_interval=2, max_epochs=1)
    assert len(module.seen) == 4
    assert sorted(torch.cat(module.seen).tolist()) == sorted(Y.tolist())


def test_averaged_weights_are_validated_and_saved_with_their_own_statistics(tmp_path):
    module = Module()
    average = EMAWeightAveraging(decay=0.5)
    checkpoint = ModelCheckpoint(tmp_path, filename="last")
    fit(module, [average, Recalibration(batches=None), checkpoint], enable_checkpointing=True, max_epochs=1)
    averaged = Module()
    averaged.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    same(averaged.network[1].running_mean, module.means[-1])
    same(averaged.network[1].running_mean, population_mean(averaged), rtol=1e-4, atol=1e-5)


def test_the_estimation_shift_of_each_norm_is_logged_and_small_after_recalibration():
    trainer = fit(Module(), [EstimationShiftMonitor(batches=None)])
    before = trainer.callback_metrics["estimation_shift/max"]
    assert before == trainer.callback_metrics["estimation_shift/network.1"]
    trainer = fit(Module(), [Recalibration(batches=None), EstimationShiftMonitor(batches=None)])
    assert float(trainer.callback_metrics["estimation_shift/max"]) < 1e-3 < 0.05 < float(before)


def test_a_module_without_running_statistics_is_left_alone():
    trainer = fit(Module("gn:4"), [Recalibration(), EstimationShiftMonitor()], max_epochs=1)
    assert "estimation_shift/max" not in trainer.callback_metrics


def test_a_collection_of_loaders_needs_an_explicit_loader():
    train, _ = loaders()
    with pytest.raises(anynorm.DataError, match=r"Expected one data loader; got dict. Pass the loader to use as loader="):
        fit(DictModule(), [Recalibration()], train={"a": train}, max_epochs=1)
    module = DictModule()
    fit(module, [Recalibration(batches=None, loader=train)], train={"a": train}, max_epochs=1)
    same(module.means[-1], population_mean(module), rtol=1e-4, atol=1e-5)


class DictModule(Module):
    def training_step(self, batch, index):
        return super().training_step(batch["a"], index)


def test_the_example_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_loader, val_loader = loaders()
    module = Module()

    from anynorm.integrations.lightning import EstimationShiftMonitor, Recalibration

    callbacks = [EMAWeightAveraging(decay=0.99), Recalibration(batches=32), EstimationShiftMonitor(batches=8)]
    trainer = pl.Trainer(max_epochs=1, callbacks=callbacks)
    trainer.fit(module, train_loader, val_loader)
    assert "estimation_shift/max" in trainer.callback_metrics


def test_the_callbacks_run_in_a_trainer_of_pytorch_lightning():
    class Other(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = Module()

        def forward(self, x):
            return self.inner(x)

        def training_step(self, batch, index):
            return self.inner.training_step(batch, index)

        def validation_step(self, batch, index):
            self.inner.validation_step(batch, index)

        def configure_optimizers(self):
            return self.inner.configure_optimizers()

    module = Other()
    callbacks = [Recalibration(batches=None), EstimationShiftMonitor()]
    trainer = pytorch_lightning.Trainer(callbacks=callbacks, max_epochs=1, **QUIET)
    trainer.fit(module, *loaders())
    same(module.inner.means[-1], population_mean(module.inner), rtol=1e-4, atol=1e-5)
    assert "estimation_shift/inner.network.1" in trainer.callback_metrics


def morphed(steps):
    module = Module()
    return module, anynorm.morph(module, "gn:4", steps=steps)


def test_a_morph_counts_optimizer_steps_and_ends_with_the_new_layers(tmp_path):
    module, report = morphed(4)
    progress = []
    record = pl.callbacks.LambdaCallback(on_train_batch_start=lambda *_: progress.append(report.t))
    fit(module, [record, Morphing(report)], accumulate_grad_batches=2)
    assert progress == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    assert report.is_finished
    assert module.network[1].spec == "gn:4"


def test_a_morph_resumes_from_a_checkpoint_at_its_t(tmp_path):
    module, report = morphed(8)
    fit(module, [Morphing(report)], max_epochs=1).save_checkpoint(tmp_path / "half.ckpt")
    assert report.t == 0.5
    resumed, report = morphed(8)
    progress = []
    record = pl.callbacks.LambdaCallback(on_train_batch_start=lambda *_: progress.append(report.t))
    trainer = pl.Trainer(callbacks=[record, Morphing(report)], max_epochs=2, **QUIET)
    trainer.fit(resumed, *loaders(), ckpt_path=tmp_path / "half.ckpt")
    assert progress == [0.5, 0.625, 0.75, 0.875]
    assert report.is_finished
    assert resumed.network[1].spec == "gn:4"


def test_a_morph_with_an_optimizer_needs_no_callback():
    module = Module()
    report = anynorm.morph(module, "gn:4", steps=2, optimizer=module.configure_optimizers())
    with pytest.raises(anynorm.SurgeryError, match="pass no optimizer to morph for a callback"):
        Morphing(report)
