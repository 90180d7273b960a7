"""Attacks are those of a naive loop, stay within their bounds, and leave the model unchanged."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anynorm
from anynorm.lab import attacks
from anynorm.lab.attacks import FGSM, PGD, Attack, StandardizedModel
from tests.helpers import ROWS, condition_for, make
from tools.check_torchattacks import largest_differences

MODES = ("eval", "train")


class Network(nn.Module):
    """A convolution, a norm, dropout and a linear layer; raises at the call with number `fails_at`."""

    def __init__(self, spec: str | nn.Module, fails_at: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm: Any = make(spec) if isinstance(spec, str) else spec
        torch.manual_seed(3)
        self.conv, self.dropout, self.head = nn.Conv2d(2, 16, 3, padding=1), nn.Dropout(0.3), nn.Linear(64, 3)
        self.calls, self.fails_at = 0, fails_at
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("out of order")
        y = self.dropout(self.norm(self.conv(x)).tanh())
        logits: Tensor = self.head(nn.functional.adaptive_avg_pool2d(y, 2).flatten(1))
        return logits


def images_and_labels(n: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, 2, 8, 8, generator=generator, dtype=dtype), torch.arange(n) % 3


def condition_of(model: Network, images: Tensor) -> Any:
    """Return the context in which a network with any norm can be called."""
    features = torch.zeros(len(images), 16, 8, 8, dtype=images.dtype)
    value = condition_for(model.norm, features)
    return nullcontext() if value is None else anynorm.condition(model, value)


def trace(model: nn.Module) -> dict[str, Any]:
    """Return everything that an attack must leave as it is."""
    tensors: dict[str, Tensor] = {f"parameter {name}": x for name, x in model.named_parameters()}
    tensors |= {f"buffer {name}": x for name, x in model.named_buffers()}
    gradients = {f"gradient {name}": x.grad for name, x in model.named_parameters()}
    return {
        "identities": {name: id(x) for name, x in (tensors | gradients).items()},
        "values": {name: x.detach().clone() for name, x in (tensors | gradients).items() if x is not None},
        "requires_grad": {name: x.requires_grad for name, x in tensors.items()},
        "modes": [module.training for module in model.modules()],
        "random": torch.get_rng_state(),
    }


def assert_no_trace(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in ("identities", "requires_grad", "modes"):
        assert before[name] == after[name]
    assert torch.equal(before["random"], after["random"])
    assert before["values"].keys() == after["values"].keys()
    for name, value in before["values"].items():
        assert value.dtype == after["values"][name].dtype
        assert torch.equal(value, after["values"][name]), name


def prepare(model: Network) -> None:
    """Bring a network into a state in which every trace would show: trained for a step, modes and flags mixed."""
    images, labels = images_and_labels()
    with condition_of(model, images):
        nn.functional.cross_entropy(model(images), labels).backward()
    model.dropout.eval()
    model.conv.weight.requires_grad_(False)
    model.calls = 0


@pytest.mark.parametrize("norm_mode", MODES)
@pytest.mark.parametrize("spec", ROWS)
def test_an_attack_leaves_every_norm_bit_identical(spec, norm_mode):
    model = Network(spec)
    prepare(model)
    images, labels = images_and_labels()
    before, kept = trace(model), images.clone()
    with condition_of(model, images):
        adversarial = PGD(2, norm_mode=norm_mode, restarts=2)(model, images, labels)
    assert_no_trace(before, trace(model))
    assert torch.equal(images, kept)
    assert not torch.equal(adversarial, images)
    assert not adversarial.requires_grad


@pytest.mark.parametrize("fails_at", [1, 3])
@pytest.mark.parametrize("norm_mode", MODES)
@pytest.mark.parametrize("spec", ["bn", "brn", "modenorm:2", "saauxbn@2", "ssn:2"])
def test_an_attack_that_raises_leaves_no_trace(spec, norm_mode, fails_at):
    model = Network(spec)
    prepare(model)
    model.fails_at = fails_at
    before = trace(model)
    images, labels = images_and_labels()
    with condition_of(model, images), pytest.raises(RuntimeError, match="out of order"):
        PGD(4, norm_mode=norm_mode)(model, images, labels)
    assert_no_trace(before, trace(model))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_an_attack_has_gradients_where_they_are_disabled(context):
    model = Network("bn")
    images, labels = images_and_labels()
    expected = PGD(2)(model, images, labels)
    with context():
        assert torch.equal(PGD(2)(model, images.clone(), labels.clone()), expected)


def naive_pgd(model, images, labels, *, steps, step_size, epsilon, start=None):
    """PGD as a loop over the values of images, with central differences of the loss in float64."""

    def loss(x):
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), labels, reduction="sum"))

    result = images.clone() if start is None else start.clone()
    for _ in range(steps):
        signs = torch.zeros_like(result)
        for index in range(result.numel()):
            up, down = result.clone(), result.clone()
            up.view(-1)[index] += 1e-6
            down.view(-1)[index] -= 1e-6
            difference = loss(up) - loss(down)
            signs.view(-1)[index] = (difference > 0) - (difference < 0)
        for index in range(result.numel()):
            value, center = float(result.view(-1)[index] + step_size * signs.view(-1)[index]), float(images.view(-1)[index])
            result.view(-1)[index] = min(max(min(max(value, center - epsilon), center + epsilon), 0.0), 1.0)
    return result


@pytest.mark.parametrize("norm_mode", MODES)
def test_attacks_are_those_of_a_naive_loop(norm_mode):
    model = Network(nn.BatchNorm2d(16), dtype=torch.float64)
    images, labels = images_and_labels(3, torch.float64)
    images = images[:, :, :4, :4].contiguous()
    model(images)
    attack = PGD(3, 0.02, epsilon=0.05, norm_mode=norm_mode, random_start=False)
    results = attack(model, images, labels), FGSM(epsilon=0.05, norm_mode=norm_mode)(model, images, labels)
    model.eval()
    model.norm.train(norm_mode == "train")
    expected = naive_pgd(model, images, labels, steps=3, step_size=0.02, epsilon=0.05)
    torch.testing.assert_close(results[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        results[1], naive_pgd(model, images, labels, steps=1, step_size=0.05, epsilon=0.05), rtol=0, atol=1e-12
    )


def test_a_random_start_is_uniform_within_epsilon_and_follows_the_generator():
    images, labels = torch.full((64, 2, 8, 8), 0.5), torch.zeros(64, dtype=torch.long)
    model = Network("gn:4")
    attack = PGD(1, 0.0, epsilon=0.1)  # no step: the random start itself
    start = attack(model, images, labels, torch.Generator().manual_seed(5)) - 0.5
    assert torch.equal(start, attack(model, images, labels, torch.Generator().manual_seed(5)) - 0.5)
    assert not torch.equal(start, attack(model, images, labels) - 0.5)
    assert float(start.abs().max()) <= 0.1 + 1e-7
    assert float(start.mean()) == pytest.approx(0, abs=4e-3)
    assert float(start.std()) == pytest.approx(0.1 / 3**0.5, rel=0.03)


@pytest.mark.parametrize("norm_mode", MODES)
def test_adversarial_images_stay_in_range_and_within_epsilon_and_have_a_larger_loss(norm_mode):
    model = Network("bn")
    images, labels = images_and_labels(32)
    attack = PGD(5, epsilon=0.03, norm_mode=norm_mode)
    adversarial = attack(model, images, labels)
    assert float((adversarial - images).abs().max()) <= 0.03 + 1e-6
    assert 0 <= float(adversarial.min()) <= float(adversarial.max()) <= 1
    model.eval()
    model.norm.train(norm_mode == "train")
    with torch.no_grad():
        clean, attacked = (float(nn.functional.cross_entropy(model(x), labels)) for x in (images, adversarial))
    assert attacked > clean


def test_of_several_restarts_the_one_with_the_largest_loss_is_returned():
    model, generator = Network("in").eval(), torch.Generator().manual_seed(1)
    images, labels = images_and_labels()
    singles = [PGD(2, epsilon=0.2)(model, images, labels, generator) for _ in range(3)]
    losses = torch.stack([nn.functional.cross_entropy(model(x), labels, reduction="none") for x in singles])
    best = PGD(2, epsilon=0.2, restarts=3)(model, images, labels, torch.Generator().manual_seed(1))
    expected = torch.stack([singles[k][n] for n, k in enumerate(losses.argmax(0))])
    assert len(losses.argmax(0).unique()) > 1
    assert torch.equal(best, expected)


def test_the_modes_are_two_attacks_for_batch_statistics_and_one_for_others():
    images, labels = images_and_labels()
    for spec, is_same in (("bn", False), ("gn:4", True), ("ln", True)):
        model = Network(spec)
        results = [PGD(3, norm_mode=mode)(model, images, labels) for mode in MODES]
        assert torch.equal(*results) == is_same


def test_the_standardization_is_part_of_the_attacked_model():
    images, labels = images_and_labels(dtype=torch.float64)
    inner = Network("gn:4", dtype=torch.float64).eval()
    mean, std = torch.tensor([0.4, 0.6]), torch.tensor([0.2, 0.3])
    model = StandardizedModel(inner, mean, std)
    expected = inner((images - mean[:, None, None].double()) / std[:, None, None].double())
    torch.testing.assert_close(model(images), expected)
    assert model.state_dict().keys() == {f"model.{name}" for name in inner.state_dict()}
    adversarial = PGD(3)(model, images, labels)
    assert float((adversarial - images).abs().max()) <= 8 / 255 + 1e-12
    standardized = StandardizedModel(inner, [0.4, 0.6], [0.2, 0.3])
    assert torch.equal(PGD(3)(standardized, images, labels), adversarial)


def test_attacks_can_be_written_as_text():
    assert attacks.parse("fgsm") == FGSM()
    assert attacks.parse("pgd:4") == PGD(4, 2 / 255, epsilon=8 / 255)
    assert attacks.parse(" pgd:10 ", epsilon=0.1, step_size=0.02, norm_mode="train") == PGD(
        10, 0.02, epsilon=0.1, norm_mode="train"
    )
    for text in ("fgsm", "pgd:20"):
        assert str(attacks.parse(text)) == text
    for text in ("pgd", "pgd:", "pgd:x", "pgd:-1", "fgsm:3", "cw", ""):
        with pytest.raises(anynorm.SpecError, match=r"an attack must be fgsm or pgd:STEPS, such as pgd:10; got '.*'"):
            attacks.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 8}, r"epsilon must be in \[0, 1\], the range of images; got 8\. Divide by 255: 8/255\."),
        ({"epsilon": -0.1}, r"epsilon must be in \[0, 1\], the range of images; got -0\.1\.$"),
        ({"epsilon": float("nan")}, r"epsilon must be in \[0, 1\], the range of images; got nan\.$"),
        ({"step_size": 2}, r"step_size must be in \[0, 1\], the range of images; got 2\. Divide by 255: 2/255\."),
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"restarts": 0}, "restarts must be at least 1; got 0"),
        ({"restarts": 2, "random_start": False}, "restarts must be 1 without a random start, since all would be equal; got 2"),
        ({"norm_mode": "test"}, "norm_mode must be one of eval train; got 'test'"),
    ],
)
def test_settings_outside_their_range_are_refused(options, message):
    with pytest.raises(anynorm.SpecError, match=message):
        PGD(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (255 * x).byte(), r"floating-point values in \[0, 1\]; got torch\.uint8\. Divide by 255: images / 255"),
        (lambda x: 255 * x, r"must be in \[0, 1\]; got values from .* to 25\d\. Divide by 255"),
        (lambda x: (x - 0.5) / 0.2, r"must be in \[0, 1\]; got values from -2\.\d+ to 2\.\d+\. Standardize inside the model"),
        (lambda x: x * float("nan"), r"must be in \[0, 1\]; got values from nan to nan"),
    ],
)
@pytest.mark.parametrize("attack", [FGSM(), PGD(2)])
def test_images_outside_their_range_are_refused(attack, change, message):
    images, labels = images_and_labels()
    with pytest.raises(anynorm.DataError, match=message):
        attack(Network("bn"), change(images), labels)


class Broken(nn.Module):
    """A linear network whose output has no gradient, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.linear = way, nn.Linear(128, 3)

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        if self.way == "detach":
            return self.linear(x.detach())
        if self.way == "round":
            return self.linear((x > 0.5).float())
        logits = self.linear(x)
        if self.way == "no_grad":
            with torch.no_grad():
                return self.linear(x)
        return {"argmax": logits.argmax(1), "one-hot": nn.functional.one_hot(logits.argmax(1), 3).float(), "tuple": (logits,)}[
            self.way
        ]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        *((way, "must be differentiable with respect to the images") for way in ("detach", "round", "no_grad", "one-hot")),
        ("argmax", r"must return logits of shape \(8, num_classes\); got torch\.int64 of shape \(8,\)"),
        ("tuple", r"must return logits of shape \(8, num_classes\); got tuple"),
    ],
)
def test_a_model_without_gradients_is_refused(way, message):
    model = Broken(way)
    before = trace(model)
    with pytest.raises(anynorm.DataError, match=message):
        PGD(2)(model, *images_and_labels())
    assert_no_trace(before, trace(model))


def test_an_attack_without_an_algorithm_is_refused():
    with pytest.raises(NotImplementedError):
        Attack()(Network("bn"), *images_and_labels())


def test_torchattacks_returns_the_same_images():
    reason = "torchattacks is not a test dependency; tools/check_torchattacks.py says how to install it apart"
    torchattacks = pytest.importorskip("torchattacks", reason=reason)
    assert set(largest_differences(torchattacks).values()) == {0.0}


def test_a_dropout_that_a_norm_applies_stays_off_in_train_mode():
    norm = make("bn")
    norm.add_module("drop", nn.Dropout(0.9))
    norm.post_modules = ("drop",)
    model, (images, labels) = Network(norm), images_and_labels()
    first, second = (PGD(2, norm_mode="train", random_start=False)(model, images, labels) for _ in range(2))
    norm.drop.p = 0.0
    assert torch.equal(first, second)
    assert torch.equal(first, PGD(2, norm_mode="train", random_start=False)(model, images, labels))


def test_an_attack_that_is_given_twice_counts_once():
    from anynorm.lab.tasks.classification.options import ClassificationOptions

    options = ClassificationOptions.from_values({"attack": "pgd:4, pgd:4,fgsm"})
    assert [str(attack) for attack in options.make_attacks()] == ["pgd:4", "fgsm"]
