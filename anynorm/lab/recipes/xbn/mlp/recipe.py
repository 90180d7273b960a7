"""xbn Figs. 2 to 5: estimation shift in a 20-layer MLP with BN, and with GN and BN.

    anynorm reproduce xbn_mlp --preset paper

Paper: 20 layers of 128 neurons with ReLU on MNIST, with BN, with GN on the odd and BN on the even layers (GNBN), or without
norms; full-batch gradient descent, learning rate 0.1, 80 iterations. S' is MNIST's test set. The training set S is S' itself
(Figs. 2, 4) or a random subset of it (Figs. 3, 5).

    smoke  scikit-learn's digits, 6 layers, 10 iterations; checks that the code works and claims nothing
    night  the published setting on MNIST's test set, with controls; 16 seeds with other random seeds than `paper`
    paper  the published setting on MNIST's test set

Nothing is scaled down in `paper` and `night`. Pixels are scaled to 0 … 1.

**Two readings of α = 0.9**, the update factor of the running statistics. Eq. 3 as printed gives α to the newest batch: torch's
momentum 0.9. Read as the weight of the old value, it is torch's default, momentum 0.1. All claims about Figs. 2 to 5 are tested
with momentum 0.1. `night` tests those about Fig. 2 with momentum 0.9 too, as claims about "Fig. 2, α as printed".

**The network without norms** (sec. 4.2.1: 57.73 % error at |S| = 32, BN 73.02 %). The paper states neither its initialization nor
another training than that of BN. With the stated learning rate and number of iterations it does not train with any of four
initializations. `night` trains both networks with the initialization, the learning rate and the number of iterations of the
network without norms; the paper's claim is tested with one of these trainings, chosen because both networks fit with it. A
comparison in which each network has its own training is ours. Other layers are initialized as torch does.

`night` adds what the paper does not separate or does not show here: running statistics that start from those of the first batch
instead of (0, 1), so that only lag and accumulation are left; other learning rates, momenta, depths and numbers of groups
(captions of Figs. 2 and 4; with momentum 0.05 and 0.2, the first phase has 60 and 15 iterations, as the average is that much
slower and faster); curves of the runs on subsets (Fig. 3c); statistics recomputed on the training set (sec. 4.1) and the
estimation shift on the training set (sec. 4.2.1).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.lab.data.readers import digits, mnist
from anynorm.lab.models.mlp import mlp
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.xbn.mlp.claims import claims
from anynorm.lab.recipes.xbn.mlp.quantities import controls
from anynorm.lab.recipes.xbn.mlp.results import plot, tables
from anynorm.lab.recipes.xbn.mlp.settings import MOMENTUM, PRINTED_MOMENTUM, MlpSettings
from anynorm.lab.training.items import pack_hits
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.registry import make
from anynorm.surgery.recalibrate import recalibrate

PAPER = MlpSettings(
    seeds=5,
    data="mnist",
    depth=20,
    width=128,
    lr=0.1,
    iterations=80,
    early_iterations=30,
    train_sizes=(32, 128, 256, 512, 1024),
    inits=("default", "kaiming", "xavier", "orthogonal"),
    no_norm_lrs=(0.01, 0.03, 0.1),
    no_norm_iterations=(80, 800),
)
NIGHT = replace(
    PAPER, seeds=16, inits=("default", "orthogonal"), no_norm_lrs=(0.01, 0.1), no_norm_iterations=(80, 800),
    equal_training=True, first_batch_start=True, momenta=(0.05, 0.2, PRINTED_MOMENTUM), lrs=(0.05, 0.2), depths=(10, 40),
    groups=(1, 16), measure_subsets=True, first_random_seed=100,
)  # fmt: skip
SMOKE = replace(
    NIGHT, seeds=2, data="digits", depth=6, width=32, iterations=8, early_iterations=3, lrs=(), depths=(3,), groups=(8,),
    momenta=(PRINTED_MOMENTUM,), train_sizes=(32, 64), inits=("default",), no_norm_lrs=(0.1,), no_norm_iterations=(10,),
)  # fmt: skip
NORMS = {"bn": ["bn"], "gnbn": ["gn:4", "bn"], "none": ["none"]}
"""Norms of the layers by network, repeated over the depth: "gnbn" has GN on the odd layers, counted from 1."""
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "kaiming": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "orthogonal": lambda weight: nn.init.orthogonal_(weight, 2**0.5),
}


def cells(settings: MlpSettings) -> list[Cell]:
    """Return the runs on all data (Figs. 2, 4), on subsets (Figs. 3, 5), with other settings, and those of sec. 4.2.1."""
    seeds, sizes, smallest = settings.seeds, settings.train_sizes, [min(settings.train_sizes)]
    other_inits = [init for init in settings.inits if init != "default"]
    defaults = {"init": "default", "lr": settings.lr, "iterations": settings.iterations}
    with_defaults = [
        *grid(seeds, figure=["2, 4"], network=["bn", "gnbn"], train_size=["all"]),
        *grid(seeds, figure=["3, 5"], network=["bn", "gnbn", "none"], train_size=sizes),
        *grid(seeds, figure=["initializations"], network=["bn", "gnbn"], train_size=smallest, init=other_inits),
    ]
    if settings.first_batch_start:
        with_defaults += grid(seeds, figure=["start"], network=["bn", "gnbn"], train_size=["all"], start=["first batch"])
    with_defaults += grid(seeds, figure=["momentum"], network=["bn"], train_size=["all"], momentum=settings.momenta)
    with_defaults += grid(seeds, figure=["lr"], network=["bn"], train_size=["all"], lr=settings.lrs)
    with_defaults += grid(seeds, figure=["depth"], network=["bn"], train_size=["all"], depth=settings.depths)
    with_defaults += grid(seeds, figure=["groups"], network=["gnbn"], train_size=["all"], groups=settings.groups)
    without_norm = grid(
        seeds,
        figure=["no norm"],
        network=["none", "bn"] if settings.equal_training else ["none"],
        train_size=smallest,
        init=settings.inits,
        lr=settings.no_norm_lrs,
        iterations=settings.no_norm_iterations,
    )
    return [defaults | cell for cell in with_defaults] + without_norm


def load_data(name: str) -> tuple[Tensor, Tensor]:
    """Return the images of S', flattened and scaled to 0 … 1, and their labels."""
    images, labels = mnist("test") if name == "mnist" else digits()
    return images.flatten(1).float() / 255, labels


def build_network(settings: MlpSettings, cell: Cell, num_inputs: int) -> nn.Sequential:
    """Return the network of a cell."""
    norms = [norm.replace("gn:4", f"gn:{cell.get('groups', 4)}") for norm in NORMS[cell["network"]]]
    depth = cell.get("depth", settings.depth)
    model = mlp(num_inputs, 10, norms=[norms[k % len(norms)] for k in range(depth)], width=settings.width)
    for index, layer in enumerate(model):
        if cell.get("momentum", MOMENTUM) != MOMENTUM and getattr(layer, "running_mean", None) is not None:
            model[index] = make("bn", settings.width, momentum=cell["momentum"])
        if isinstance(layer, nn.Linear) and cell["init"] != "default":
            INITS[cell["init"]](layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def measure(settings: MlpSettings, cell: Cell, _runs: Path) -> Measurement:
    """Train a network and return its errors in percent and the estimation shift of each of its batch norms.

    Returns:
        The values after training; for runs on all data, and on subsets if the settings say so, also `curves`, their values at
        every iteration; for those on subsets also `recomputed_error` and `train_esm_std`, see `measure_on_training_set`.
    """
    x, labels = load_data(settings.data)
    use_all = cell["train_size"] == "all"
    is_measured_subset = settings.measure_subsets and cell["figure"] == "3, 5" and cell["network"] != "none"
    random_seed = settings.first_random_seed + cell["seed"]
    generator = torch.Generator().manual_seed(random_seed)
    indices = torch.randperm(len(x), generator=generator)[: len(x) if use_all else cell["train_size"]]
    train_x, train_labels = x[indices], labels[indices]
    torch.manual_seed(random_seed)
    model = build_network(settings, cell, x.shape[1])
    if cell.get("start") == "first batch":
        recalibrate(model, [train_x])
    optimizer = torch.optim.SGD(model.parameters(), lr=cell["lr"])
    curves: dict[str, list[Any]] = {"train_error": [], "test_error": [], "esm_mean": [], "esm_std": []}
    for _ in range(cell["iterations"]):
        logits = model.train()(train_x)
        if use_all or is_measured_subset:
            curves["train_error"].append(classification_error(logits, train_labels))
            append_test_metrics(curves, model, x, labels)
        loss = nn.functional.cross_entropy(logits, train_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        curves["train_error"].append(classification_error(model.train()(train_x), train_labels))
        append_test_metrics(curves, model, x, labels)
    last = {name: values[-1] for name, values in curves.items()}
    items = {"test_error": pack_errors(model, x, labels)}
    result = {**last, "input_shift": float((train_x.std(0) - x.std(0)).norm()), "items": items}
    if is_measured_subset:
        on_training_set = measure_on_training_set(model, train_x, x, labels)
        result |= on_training_set | {"items": items | on_training_set["items"]}
    return result | {"curves": curves if use_all or is_measured_subset else None}


@torch.no_grad()
def measure_on_training_set(model: nn.Sequential, train_x: Tensor, x: Tensor, labels: Tensor) -> Measurement:
    """Return the test error with statistics recomputed on the training set, and ESM_σ on the training set by layer.

    Args:
        model: the trained network.
        train_x: the training inputs.
        x: the test inputs.
        labels: their classes.
    """
    recomputed = copy.deepcopy(model)
    recalibrate(recomputed, [train_x])
    report = estimation_shift(model, [train_x], trial_samples=0)
    return {
        "recomputed_error": classification_error(recomputed.eval()(x), labels),
        "items": {"recomputed_error": pack_errors(recomputed, x, labels)},
        "train_esm_std": [round(row["esm_std"], 5) for row in report],
    }


@torch.no_grad()
def append_test_metrics(curves: dict[str, list[Any]], model: nn.Sequential, x: Tensor, labels: Tensor) -> None:
    """Append the test error and the estimation shift of each batch norm, in eval mode.

    Args:
        curves: lists by metric, to which values are appended.
        model: the network.
        x: the test inputs.
        labels: their classes.
    """
    curves["test_error"].append(classification_error(model.eval()(x), labels))
    has_running_stats = any(getattr(layer, "running_mean", None) is not None for layer in model)
    report: Iterable[Row] = estimation_shift(model, [x], trial_samples=0) if has_running_stats else []
    for name in ("esm_mean", "esm_std"):
        curves[name].append([round(row[name], 5) for row in report])


@torch.no_grad()
def pack_errors(model: nn.Sequential, x: Tensor, labels: Tensor) -> str:
    """Return which inputs are classified wrongly in eval mode, as items of the error, see `anynorm.lab.training.items`."""
    return pack_hits((model.eval()(x).argmax(1) != labels).tolist())


def classification_error(logits: Tensor, labels: Tensor) -> float:
    """Return the classification error in percent."""
    return round(100 * float((logits.argmax(1) != labels).double().mean()), 3)


RECIPE = Recipe("xbn_mlp", {"smoke": SMOKE, "night": NIGHT, "paper": PAPER}, cells, measure, claims, plot, tables, controls)
