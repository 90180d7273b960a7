"""The operations of surgery on one model, each compared with what it promises, and undone.

Running statistics are those of one batch, then changed at random like the affine, so that equal outputs mean something.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import anynorm
from anynorm.errors import AnynormError
from anynorm.surgery.dataflow import tensors_of
from anynorm.surgery.find import find_norms
from anynorm.surgery.inspect import inspect
from anynorm.surgery.report import SurgeryReport
from tests.interop.models import Model

SEED = 0
TOLERANCE = {"bn": 1e-4, "hn": 1e-3, "fold": 1e-3, "fuse": 1e-3, "to_rms": 1e-3}
"""Largest change of the output, relative to its largest value: float32, through up to 200 layers."""
SMALL = 1e-3
"""Largest absolute value of parameters that are initialized to about zero."""
STOCHASTIC_DEPTH = ("StochasticDepth", "DropPath")
"""Names of its classes in torchvision and timm."""


class CheckError(Exception):
    """An operation did something else than it promises."""


def measure(model: Model, operations: Iterable[str] = ()) -> dict[str, Any]:
    """Return what operations did to a model, all of them by default; if the model itself does not run, the reason."""
    row: dict[str, Any] = {"package": model.package, "name": model.name}
    try:
        return row | _measure(model, list(operations) or list(OPERATIONS))
    except Exception as error:  # models of other packages raise anything
        return row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def _measure(model: Model, operations: list[str]) -> dict[str, Any]:
    torch.manual_seed(SEED)
    network = model.make()
    row: dict[str, Any] = {}
    row["parameters"] = sum(parameter.numel() for parameter in network.parameters())
    draw_small_parameters(network)
    x = smallest_input(network, model)
    perturb(network)
    network.eval()
    row["input"] = list(x.shape[1:])
    row |= {"norms": len(inspect(network)), "batch_norms": len(batch_norms(network))}
    row["unsupported"] = reasons(inspect(network))
    expected = outputs(network, x)
    check(all(bool(y.isfinite().all()) for y in expected), "the outputs of the model itself are not finite")
    check(any(bool((y[0] != y[1]).any()) for y in expected), "the outputs of the model itself do not depend on the input")
    state = State(network)
    row["operations"] = {name: attempt(OPERATIONS[name], state, x, expected) for name in operations}
    return row


def smallest_input(network: nn.Module, model: Model) -> Tensor:
    """Return a batch of two of the first shape that a model takes, after a pass that estimates running statistics on it."""
    modules: Any = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momentum = {module: module.momentum for module in modules}
    error: Exception | None = None
    for shape in model.shapes:
        x = model.example(shape, SEED)
        try:
            for module in modules:
                module.reset_running_stats()
                module.momentum = 1.0
            outputs(network.train(), x)
            check(all(bool(y.isfinite().all()) for y in outputs(network.eval(), x)), "the outputs are not finite")
            return x
        except Exception as caught:  # other packages raise anything on an input of another size
            error = caught
        finally:
            for module in modules:
                module.momentum = momentum[module]
    raise error if error else ValueError("no shapes")


@torch.no_grad()
def perturb(network: nn.Module) -> None:
    """Multiply variances by 0.5 to 2, shift means by up to half a standard deviation, and draw the affine of every norm."""
    generator = torch.Generator().manual_seed(SEED)
    for site in find_norms(network):
        module: Any = site.module
        for name, low, high in (("weight", 0.5, 1.0), ("bias", -0.1, 0.1)):
            if getattr(module, name, None) is not None:
                getattr(module, name).uniform_(low, high, generator=generator)
        if getattr(module, "running_var", None) is not None:
            module.running_var.mul_(torch.empty_like(module.running_var).uniform_(0.5, 2, generator=generator))
            shift = torch.empty_like(module.running_mean).uniform_(-0.5, 0.5, generator=generator)
            module.running_mean.add_(shift * module.running_var.sqrt())


@torch.no_grad()
def draw_small_parameters(network: nn.Module) -> None:
    """Draw the parameters that are initialized to about zero, such as heads and layer scales, which hide what is before them."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in network.named_parameters():
        if name.endswith("bias") or not parameter.numel() or parameter.abs().max() > SMALL:
            continue
        if parameter.ndim > 1:
            bound = parameter[0].numel() ** -0.5
            parameter.uniform_(-bound, bound, generator=generator)
        else:
            parameter.uniform_(0.5, 1.0, generator=generator)


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the tensors that a model computes."""
    torch.manual_seed(SEED)  # of dropout
    return [y for y in tensors_of(network(x)) if y.is_floating_point()]


def batch_norms(network: nn.Module) -> list[Any]:
    """Return the norms that pool over samples."""
    return [site for site in find_norms(network) if not site.unsupported and site.info.pools_samples]


def reasons(report: SurgeryReport) -> dict[str, int]:
    """Return the number of norms per note of a report."""
    return count_notes(row.get("note") for row in report.rows)


def count_notes(notes: Iterable[str | None]) -> dict[str, int]:
    """Return how often each note occurs, where paths of layers make no difference.

    >>> count_notes(["'a.b' (GELU), gelu, reads", "'a.c' (GELU), gelu, reads", None, "the norm 'a', c.weight is tied"])
    {'GELU, gelu, reads': 2, 'a norm, a weight is tied': 1}
    """
    texts = (re.sub(r"'[\w.]+' \((\w+)\)", r"\1", note) for note in notes if note)
    return dict(
        Counter(re.sub(r"\b[\w.]+\.weight\b", "a weight", re.sub(r"the norm '[\w.]+'", "a norm", text)) for text in texts)
    )


def check(condition: bool, message: str) -> None:
    """Raise CheckError if a condition does not hold."""
    if not condition:
        raise CheckError(message)


def attempt(operation: Callable[..., dict[str, Any]], state: "State", x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Run an operation; refusals and failures are results too, with the first line of their reason."""
    try:
        return {"result": "passed", **operation(state, x, expected)}
    except AnynormError as error:
        return {"result": "refused", "reason": str(error).splitlines()[0]}
    except CheckError as error:
        return {"result": "failed", "reason": str(error)}
    except Exception as error:  # a failure of any kind belongs into the table
        return {"result": "failed", "reason": f"{type(error).__name__}: {error}".splitlines()[0]}


class State:
    """A model and all that must be as before when an operation has been undone."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.modules = self._modules()
        self.tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def _modules(self) -> list[Any]:
        return [(path, type(module), module.training) for path, module in self.network.named_modules()]

    @contextmanager
    def undone(self, report: SurgeryReport) -> Iterator[SurgeryReport]:
        """Context in which the model is changed; afterwards it is as it was, to the bit."""
        try:
            yield report
        finally:
            report.undo()
        tensors = self.network.state_dict()
        check(self._modules() == self.modules, "undo left other modules or modes")
        check(list(tensors) == list(self.tensors), "undo left other names of tensors")
        check(all(torch.equal(tensors[name], self.tensors[name]) for name in tensors), "undo left other values")


def output_change(network: nn.Module, x: Tensor, expected: list[Tensor]) -> float:
    """Return the largest change of the outputs, relative to the largest value of each."""
    pairs = list(zip(outputs(network, x), expected, strict=True))
    return max(float((new - old).abs().max() / old.abs().max().clamp(min=1e-12)) for new, old in pairs)


def keep_outputs(spec: str) -> Callable[..., dict[str, Any]]:
    """Return the operation that converts to a spec with the same outputs in eval mode; a model without BatchNorm is trained."""

    def operation(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
        if not batch_norms(state.network):
            return train(state, x, spec)
        with state.undone(anynorm.convert(state.network, spec)) as report:
            change = output_change(state.network, x, expected)
        check(change <= TOLERANCE[spec], f"the outputs changed by {change:.1g} of their largest value")
        return {"count": sum(1 for row in report if row["new_norm"]), "change": change}

    return operation


def is_trained(parameter: nn.Parameter | None) -> bool:
    """Whether there is a parameter, and it is trained: β of an RMSNorm is fixed at 0."""
    return parameter is not None and parameter.requires_grad


def train_gn(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Convert to gn:8 and train."""
    return train(state, x, "gn:8")


def train(state: State, x: Tensor, spec: str) -> dict[str, Any]:
    """Convert to a spec and train a copy for a step: the loss must be finite, and gradients must reach every norm that ran.

    Stochastic depth is off: it drops some blocks for both samples, and their norms then have no gradient.
    """
    with state.undone(anynorm.convert(state.network, spec, groups="nearest")) as report:
        network = copy.deepcopy(state.network).train()
    new = [network.get_submodule(row["path"]) for row in report if row["new_norm"]]
    for module in network.modules():
        if type(module).__name__ in STOCHASTIC_DEPTH:
            module.eval()
    norms: list[Any] = list(dict.fromkeys(new))
    ran: set[int] = set()
    for norm in norms:
        norm.register_forward_hook(lambda module, *_: ran.add(id(module)))
    torch.manual_seed(SEED)
    tensors = [y for y in tensors_of(network(x)) if y.is_floating_point()]
    loss = torch.stack([(y - 1).square().mean() for y in tensors]).sum()
    loss.backward()
    check(bool(loss.isfinite()), "the loss is not finite")
    affines = [next(filter(is_trained, (norm.bias, norm.weight)), None) for norm in norms if id(norm) in ran]
    gradients = [parameter.grad for parameter in affines if parameter is not None]
    check(all(g is not None and bool(g.isfinite().all()) for g in gradients), "a norm has no gradient, or not a finite one")
    reached = sum(1 for g in gradients if bool(g.any()))
    check(reached == len(gradients), f"the gradient of {len(gradients) - reached} of {len(gradients)} norms is zero")
    torch.optim.SGD(network.parameters(), lr=1e-4).step()
    check(all(bool(y.isfinite().all()) for y in outputs(network, x)), "the outputs are not finite after the step")
    return {"count": len(new)}


def replace_in_blocks(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Replace one norm of each residual block."""
    with state.undone(anynorm.xbn(state.network, "gn:8")) as report:
        check(all(bool(y.isfinite().all()) for y in outputs(state.network, x)), "the outputs are not finite")
    words = report.finding.split()
    return {"count": int(words[0]), "blocks": int(words[2])}


def fold(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Fold all norms."""
    with state.undone(anynorm.fold(state.network, x)) as report:
        change = output_change(state.network, x, expected)
    check(change <= TOLERANCE["fold"], f"the outputs changed by {change:.1g} of their largest value")
    return {"count": sum(1 for row in report if row["into"]), "change": change, "notes": reasons(report)}


def to_rms(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Turn LayerNorms over the channels of each position into RMSNorms, also where a tied embedding must get its own weight."""
    norms = sum(1 for site in find_norms(state.network) if not site.unsupported and site.info.spec == "pn")
    if not norms:
        raise AnynormError("This model has no LayerNorm over the channels of each position.")
    try:
        report = anynorm.to_rms(state.network, x, untie=True)
    except AnynormError as error:
        lines = [line.partition("): ")[2] for line in str(error).splitlines()[1:]]
        return {"count": 0, "norms": norms, "notes": count_notes(lines)}
    with state.undone(report):
        change = output_change(state.network, x, expected)
    check(change <= TOLERANCE["to_rms"], f"the outputs changed by {change:.1g} of their largest value")
    rows = [row for row in report if row["norm"]]
    notes = count_notes(row["note"] for row in rows if "does not subtract the mean" not in (row["note"] or ""))
    return {"count": sum(1 for row in rows if row["new_norm"]), "norms": norms, "change": change, "notes": notes}


def fuse(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Fuse norms with additions and activations, and train a copy for a step: the gradients must be finite."""
    report = anynorm.fuse(state.network, x)
    with state.undone(report):
        change = output_change(state.network, x, expected)
        network = copy.deepcopy(state.network).train()
    check(change <= TOLERANCE["fuse"], f"the outputs changed by {change:.1g} of their largest value")
    tensors = [y for y in tensors_of(network(x)) if y.is_floating_point()]
    torch.stack([(y - 1).square().mean() for y in tensors]).sum().backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    check(all(bool(gradient.isfinite().all()) for gradient in gradients), "a gradient is not finite")
    words = report.finding.split()
    return {
        "count": int(words[0]),
        "activations": int(words[2]),
        "additions": int(words[5]),
        "change": change,
        "notes": report.not_fused,
    }


def recalibrate(state: State, x: Tensor, expected: list[Tensor]) -> dict[str, Any]:
    """Estimate running statistics on the input and its mirror image."""
    sites = batch_norms(state.network)
    old = [site.module.running_var.clone() for site in sites]
    with state.undone(anynorm.recalibrate(state.network, [x, x.flip(-1)])):
        changed = sum(1 for site, var in zip(sites, old, strict=True) if not torch.equal(site.module.running_var, var))
        check(all(bool(y.isfinite().all()) for y in outputs(state.network, x)), "the outputs are not finite")
    return {"count": changed}


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "bn": keep_outputs("bn"),
    "hn": keep_outputs("hn"),
    "gn": train_gn,
    "xbn": replace_in_blocks,
    "fold": fold,
    "fuse": fuse,
    "to_rms": to_rms,
    "recalibrate": recalibrate,
}
