"""`distill` trains a converted network to return what its original returns; errors and interrupts leave it as it was."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anynorm
from anynorm.errors import SurgeryError
from anynorm.lab import CifarResNet
from anynorm.surgery.distill_data import read_samples, select, shift_and_flip
from anynorm.surgery.distill_training import relative_error

load_digits = pytest.importorskip("sklearn.datasets", reason="needs the lab extra").load_digits


@pytest.fixture(scope="module")
def digits():
    images = torch.from_numpy(load_digits().images).float()[:, None] / 16
    return images, torch.from_numpy(load_digits().target)


@pytest.fixture(scope="module")
def trained(digits):
    """A ResNet-8 of 8 channels with BatchNorm that has learned the digits."""
    images, labels = digits
    torch.manual_seed(0)
    model = CifarResNet(8, norm=nn.BatchNorm2d, width=8, in_channels=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in torch.randperm(1400).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


def converted(trained, digits, spec="gn:4"):
    model = copy.deepcopy(trained)
    anynorm.convert(model, spec, fit=digits[0][:256])
    return model


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_state(model, before):
    after = model.state_dict()
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@torch.no_grad()
def error(model, original, x):
    return float(relative_error(model(x), original(x)))


@torch.no_grad()
def agreement(model, original, x):
    return float((model(x).argmax(1) == original(x).argmax(1)).float().mean())


def test_distilling_brings_the_outputs_to_those_of_the_original_on_new_images(trained, digits):
    model = converted(trained, digits)
    new = digits[0][1400:]
    before = agreement(model, trained, new), error(model, trained, new)
    report = anynorm.distill(model, trained, digits[0][:1400], steps=150)
    after = agreement(model, trained, new), error(model, trained, new)
    assert after[1] < 0.6 * before[1]
    assert after[0] > before[0] + 0.02
    assert [row["path"] for row in report] == ["layer1.0", "layer2.0", "layer3.0", "end to end"]
    assert all(row["error_after"] < row["error_before"] for row in report)
    assert "3 blocks distilled on 1260 samples" in report.finding


def test_undo_restores_the_converted_network(trained, digits):
    model = converted(trained, digits)
    before = state(model)
    report = anynorm.distill(model, trained, digits[0][:150], steps=6)
    assert not same_state(model, before)
    assert report.undo() is model
    assert same_state(model, before)


def test_the_original_the_modes_and_the_gradients_stay(trained, digits):
    model = converted(trained, digits).train()
    model.layer1.eval()
    model.linear.weight.grad = torch.ones_like(model.linear.weight)
    before, modes = state(trained), [module.training for module in model.modules()]
    anynorm.distill(model, trained, digits[0][:150], steps=6)
    assert same_state(trained, before)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.linear.weight.grad, torch.ones_like(model.linear.weight))
    assert model.conv1.weight.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for net in (model, trained) for module in net.modules())


def test_two_runs_with_one_seed_are_equal_and_use_no_global_random_numbers(trained, digits):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = converted(trained, digits)
        anynorm.distill(model, trained, digits[0][:150], steps=10)
        states.append(state(model))
        assert torch.initial_seed() == seed
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_only_parameters_with_requires_grad_are_trained(trained, digits):
    model = converted(trained, digits)
    model.requires_grad_(False)
    model.layer2.requires_grad_(True)
    before = state(model)
    report = anynorm.distill(model, trained, digits[0][:150], steps=10)
    changed = {name.split(".")[0] for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"layer2"}
    assert report["layer1.0"]["note"] == "no parameter with requires_grad"


def test_a_group_normed_network_becomes_hn_and_folds(trained, digits):
    original = converted(trained, digits)
    anynorm.distill(original, trained, digits[0][:500], steps=60)
    model = copy.deepcopy(original)
    anynorm.convert(model, "hn", where="all")  # without statistics: distill estimates them
    estimated = copy.deepcopy(model)
    anynorm.recalibrate(estimated, digits[0][:1400])
    anynorm.distill(model, original, digits[0][:1400], steps=120)
    new = digits[0][1400:]
    report = anynorm.fold(model, new[:1])
    assert "7 of 7 norms folded" in report.finding
    assert error(model, original, new) < 0.5 * error(estimated, original, new)
    assert agreement(model, original, new) > 0.9


class Interrupted(KeyboardInterrupt):
    pass


def interrupt_after(calls):
    """Return a forward function that is interrupted in its nth call."""
    left = [calls]

    def forward(model, batch):
        left[0] -= 1
        if not left[0]:
            raise Interrupted
        return model(batch)

    return forward


@pytest.mark.parametrize("calls", [29, 56])
def test_an_interrupted_run_leaves_the_model_and_resumes_to_the_same_end(trained, digits, tmp_path, calls):
    images = digits[0][:150]
    settings: Any = {"steps": 40, "batch_size": 16, "stage_share": 0.25}
    whole = converted(trained, digits)
    report = anynorm.distill(whole, trained, images, **settings)
    model = converted(trained, digits)
    before = state(model)
    with pytest.raises(Interrupted):
        anynorm.distill(model, trained, images, **settings, checkpoint=tmp_path / "d.pt", forward=interrupt_after(calls))
    assert same_state(model, before)
    done = torch.load(tmp_path / "d.pt", weights_only=True)
    assert len(done["rows"]) == {29: 1, 56: 3}[calls]
    assert (done["end"] is not None) == (calls == 56)
    resumed = anynorm.distill(model, trained, images, **settings, checkpoint=tmp_path / "d.pt")
    assert same_state(model, state(whole))
    assert resumed.rows == report.rows
    resumed.undo()
    assert same_state(model, before)


def test_the_checkpoint_of_another_run_is_refused(trained, digits, tmp_path):
    model = converted(trained, digits)
    anynorm.distill(model, trained, digits[0][:150], steps=4, checkpoint=tmp_path / "d.pt")
    before = state(model)
    with pytest.raises(SurgeryError, match=r"differs in steps, model\. To resume"):
        anynorm.distill(model, trained, digits[0][:150], steps=5, checkpoint=tmp_path / "d.pt")
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(SurgeryError, match="is not a checkpoint of distill"):
        anynorm.distill(model, trained, digits[0][:150], steps=5, checkpoint=tmp_path / "text.pt")
    assert same_state(model, before)


def refused(message, model, original, data, **settings):
    before = state(model)
    with pytest.raises(SurgeryError, match=message):
        anynorm.distill(model, original, data, **settings)
    assert same_state(model, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1; got 0"),
        ({"minutes": 0}, "minutes must be positive; got 0"),
        ({"steps": 3, "minutes": 1}, "either steps= or minutes="),
        ({"stage_share": 1.5}, r"stage_share must be in \[0, 1\]; got 1.5"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got 0"),
        ({"lr": 0}, "lr must be positive; got 0"),
        ({"batch_size": 100}, "at least 111 samples for minibatches of 100 and a held-out part of a tenth; got 100"),
        ({"stages": "layer1"}, r"must be a list of paths, such as \['layer1', 'layer2'\]; got the string 'layer1'"),
        ({"stages": ["layr1"]}, "the model has none at 'layr1'. Did you mean layer1"),
        ({"stages": ["layer1", "layer1.0"]}, "the blocks 'layer1' and 'layer1.0' share parameters"),
    ],
)
def test_settings_that_do_not_fit_are_refused(trained, digits, settings, message):
    refused(message, converted(trained, digits), trained, digits[0][:100], **settings)


def test_too_few_images_for_a_block_are_refused_with_the_number_needed(trained, digits):
    message = (
        "block 'layer3.0': it has 13952 parameters and 128 output values per sample, so at least 109 samples .* got 45 samples"
    )
    refused(message, converted(trained, digits), trained, digits[0][:50])
    refused("at least one batch of data; got none", converted(trained, digits), trained, [])


def test_nan_in_the_outputs_of_the_original_is_refused(trained, digits):
    original = copy.deepcopy(trained)
    with torch.no_grad():
        original.linear.bias[3] = torch.nan
    refused(
        "NaN or infinity in 15 of 150 values of its output", converted(trained, digits), original, digits[0][:150], batch_size=16
    )
    original = copy.deepcopy(trained)
    images = digits[0][:150].clone()
    images[:] = torch.nan
    refused("NaN or infinity", converted(trained, digits), original, images)


def test_an_original_that_shares_parameters_is_refused(trained, digits):
    model = converted(trained, digits)
    refused("must be a copy that does not share parameters", model, model, digits[0][:150])
    original = copy.deepcopy(trained)
    original.conv1 = model.conv1
    refused("must be a copy that does not share parameters", model, original, digits[0][:150])


def test_a_model_without_parameters_to_train_is_refused(trained, digits):
    refused(
        r"the model has none: model.requires_grad_\(True\)", converted(trained, digits).requires_grad_(False), trained, digits[0]
    )


class Shared(nn.Module):
    """A stem, and one block that runs twice, or two blocks with a common convolution."""

    def __init__(self, norm, *, twice):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), norm(4))
        self.second = self.first if twice else nn.Sequential(self.first[0], norm(4))

    def forward(self, x):
        return self.second(self.first(self.stem(x))).mean((2, 3))


@pytest.mark.parametrize(
    ("twice", "stages", "message"),
    [
        (False, ["first", "second"], r"'first' and 'second' share parameters \('first.0.weight' is 'second.0.weight'\)"),
        (True, ["first"], "block 'first' runs 2 times per forward pass"),
    ],
)
def test_blocks_that_share_modules_are_refused_and_can_be_trained_end_to_end(digits, twice, stages, message):
    torch.manual_seed(0)
    original = Shared(nn.BatchNorm2d, twice=twice).eval()
    model = copy.deepcopy(original)
    anynorm.convert(model, "ln", fit=digits[0][:64]) if not twice else anynorm.convert(model, "hn")
    refused(message, model, original, digits[0][:150], stages=stages)
    report = anynorm.distill(model, original, digits[0][:150], stages=[], steps=5)
    assert [row["path"] for row in report] == ["end to end"]


def test_wrapped_and_compiled_models_are_refused(trained, digits):
    model = converted(trained, digits)
    compiled = torch.compile(model, backend="eager")
    refused("model is compiled by torch.compile", compiled, trained, digits[0][:150])
    refused(
        "original is compiled by torch.compile", model, torch.compile(copy.deepcopy(trained), backend="eager"), digits[0][:150]
    )

    class DistributedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x)

    refused("wrapped in DistributedDataParallel", DistributedDataParallel(model), trained, digits[0][:150])


def test_outputs_of_other_shapes_are_refused(trained, digits):
    original = copy.deepcopy(trained)
    original.linear = nn.Linear(32, 7)
    refused(
        r"tensors of the same shapes; got \[\(15, 10\)\] and \[\(15, 7\)\]", converted(trained, digits), original, digits[0][:150]
    )


def test_a_learning_rate_that_diverges_is_refused(trained, digits):
    refused("at step .*: use a smaller lr than 1e", converted(trained, digits), trained, digits[0][:200], lr=1e30, steps=30)


def test_labels_and_lists_of_batches_give_the_samples_of_a_tensor(digits):
    images, labels = digits[0][:60], digits[1][:60]
    generator = torch.Generator().manual_seed(0)
    whole = read_samples(images, 8, None, generator)
    assert (whole.size, len(whole.train), len(whole.held_out)) == (60, 54, 6)
    assert not set(whole.train.tolist()) & set(whole.held_out.tolist())
    batches = read_samples(list(zip(images.split(25), labels.split(25), strict=True)), 8, None, torch.Generator().manual_seed(0))
    x, y = batches.parts(batches.train)[0]
    assert torch.equal(x, images[batches.train[:8]])
    assert torch.equal(y, labels[batches.train[:8]])


def test_samples_of_lists_and_dictionaries_are_chosen_together():
    images = [torch.full((3, 4, 4 + k), float(k)) for k in range(4)]
    order = torch.tensor([2, 0])
    assert [int(image.mean()) for image in select(images, order, 4)] == [2, 0]
    chosen, targets = select((images, ["a", "b", "c", "d"]), order, 4)
    assert (len(chosen), targets) == (2, ["c", "a"])
    batch = select({"inputs": images, "data_samples": [1, 2, 3, 4]}, order, 4)
    assert batch["data_samples"] == [3, 1]
    tokens = select({"ids": torch.arange(4), "mask": torch.eye(4), "name": "x"}, order, 4)
    assert tokens["ids"].tolist() == [2, 0]
    assert tokens["mask"].argmax(1).tolist() == [2, 0]


def test_augmented_images_are_shifted_and_flipped_copies():
    images = torch.arange(16.0).repeat(8, 1, 16, 1)  # each pixel is its column
    out = shift_and_flip(images, torch.Generator().manual_seed(0))
    slopes = {int(image[0, 8, 9] - image[0, 8, 8]) for image in out}
    assert slopes == {1, -1}
    assert len({float(image[0, 8, 8]) for image in out}) > 2
    assert out.shape == images.shape
    for unchanged in (torch.randn(2, 3, 8, 8), torch.randn(2, 5, 32, 32), torch.randn(2, 16), torch.arange(4)):
        assert shift_and_flip(unchanged, torch.Generator()) is unchanged


def test_the_error_is_0_for_equal_outputs_and_1_for_the_mean():
    target = torch.from_numpy(np.random.default_rng(0).normal(2, 3, (50, 7)).astype(np.float32))
    assert float(relative_error(target, target)) == 0
    mean = target.mean().expand_as(target)
    assert float(relative_error({"a": mean}, {"a": target})) == pytest.approx(1, rel=1e-5)
    shifted = target + 1.0
    assert float(relative_error(shifted, target)) == pytest.approx(1 / float(target.var(correction=0)), rel=1e-4)
