"""Callbacks in a real Trainer of transformers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import anynorm
from anynorm.integrations.transformers import EstimationShiftCallback, MorphCallback, RecalibrationCallback
from tests.helpers import same

# transformers itself: memory pinned without an accelerator
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(64, 3, 6, 6, generator=GENERATOR) * 2 + 1, torch.randint(2, (64,), generator=GENERATOR)


class Images(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"pixel_values": X[index], "labels": Y[index]}


class Model(nn.Module):
    def __init__(self, norm="bn"):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make(norm, 8), nn.Dropout(), nn.Flatten(), nn.Linear(128, 2))
        self.means, self.seen = [], []

    def forward(self, pixel_values, labels):
        if self.training:
            self.seen.append(labels)
        elif self.network[1].running_mean is not None and not self.network[1].training:
            self.means.append(self.network[1].running_mean.clone())
        logits = self.network(pixel_values)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def arguments(tmp_path):
    return TrainingArguments(
        output_dir=tmp_path,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=0.05,
    )


def train(model, arguments, callbacks, **changes):
    for name, value in changes.items():
        setattr(arguments, name, value)
    trainer = Trainer(model, arguments, train_dataset=Images(), eval_dataset=Images(), callbacks=callbacks)
    trainer.train()
    return trainer


def population_mean(model):
    with torch.no_grad():
        return model.network[0](X).transpose(0, 1).flatten(1).mean(1)


@pytest.mark.parametrize("changes", [{}, {"eval_strategy": "steps", "eval_steps": 4}])
def test_evaluation_uses_the_statistics_of_the_current_weights(arguments, changes):
    model = Model()
    train(model, arguments, [RecalibrationCallback(batches=None)], **changes)
    same(model.means[-1], population_mean(model), rtol=1e-4, atol=1e-5)


def test_recalibration_does_not_change_the_batches_or_the_weights_of_training(arguments):
    model, plain = Model(), Model()
    train(model, arguments, [RecalibrationCallback(batches=2)], eval_strategy="steps", eval_steps=2)
    train(plain, arguments, [])
    same(torch.stack(model.seen), torch.stack(plain.seen))
    same(model.network[4].weight, plain.network[4].weight)


def test_the_example_of_the_guide(arguments):
    model, train_dataset, eval_dataset = Model(), Images(), Images()

    from anynorm.integrations.transformers import EstimationShiftCallback, RecalibrationCallback

    trainer = Trainer(model, arguments, train_dataset=train_dataset, eval_dataset=eval_dataset)
    trainer.add_callback(RecalibrationCallback(batches=32))
    trainer.add_callback(EstimationShiftCallback(trainer, batches=8))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_estimation_shift/max" in entry]
    assert [entry["epoch"] for entry in logged] == [1, 2]
    assert all(entry["eval_estimation_shift/network.1"] == entry["eval_estimation_shift/max"] < 1e-3 for entry in logged)


def test_a_model_without_running_statistics_is_left_alone():
    model, control = Model("gn:4"), SimpleNamespace(should_evaluate=True)
    RecalibrationCallback().on_step_end(None, None, control, model=model, train_dataloader=None)
    EstimationShiftCallback(trainer=None).on_evaluate(None, None, control, model=model, eval_dataloader=None)


def test_a_morph_counts_optimizer_steps_and_ends_with_the_new_layers(arguments):
    model = Model()
    report = anynorm.morph(model, "gn:4", steps=4)
    train(model, arguments, [MorphCallback(report)], gradient_accumulation_steps=2)
    assert report.is_finished
    assert model.network[1].spec == "gn:4"


def test_a_morph_resumes_from_a_checkpoint_bit_for_bit(arguments, tmp_path):
    arguments.save_strategy = "epoch"
    whole = Model()
    train(whole, arguments, [MorphCallback(anynorm.morph(whole, "gn:4", steps=8))])
    half = next(path for path in tmp_path.iterdir() if path.name.endswith("-4"))
    resumed = Model()
    report = anynorm.morph(resumed, "gn:4", steps=8)
    trainer = Trainer(resumed, arguments, train_dataset=Images(), eval_dataset=Images(), callbacks=[MorphCallback(report)])
    trainer.train(resume_from_checkpoint=str(half))
    assert report.is_finished
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
