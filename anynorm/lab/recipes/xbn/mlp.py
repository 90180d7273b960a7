"""xbn Figs. 2 to 5: estimation shift in a 20-layer MLP with BN, and with GN and BN.

    anynorm reproduce xbn_mlp --preset paper

Paper: 20 layers of 128 neurons with ReLU on MNIST, with BN, with GN on the odd and BN on the even layers (GNBN), or without
norms; full-batch gradient descent, learning rate 0.1, 80 iterations, running statistics with torch's momentum 0.1 (the text's
α = 0.9 is the weight of the old value). S' is MNIST's test set. The training set S is S' itself (Figs. 2, 4) or a random subset
of it (Figs. 3, 5).

    smoke  scikit-learn's digits, 6 layers, 10 iterations; checks that the code works and claims nothing
    paper  the published setting on MNIST's test set

Nothing is scaled down in `paper`. Pixels are scaled to 0 … 1. The paper does not say how weights are initialized: here as torch
initializes its layers. Nor does it say how the network without BN was trained. With the stated learning rate and number of
iterations it does not train with any of four initializations, so other learning rates and numbers of iterations are measured too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.lab.data.readers import digits, mnist
from anynorm.lab.models.mlp import mlp
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.rows import Values, select, values_of
from anynorm.lab.recipes.xbn.mlp_results import MlpSettings, plot, tables
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid

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
SMOKE = replace(
    PAPER, seeds=2, data="digits", depth=6, width=32, iterations=10, early_iterations=5,
    train_sizes=(32, 64), inits=("default",), no_norm_lrs=(0.1,), no_norm_iterations=(10,),
)  # fmt: skip
NORMS = {"bn": ["bn"], "gnbn": ["gn:4", "bn"], "none": ["none"]}
"""Norms of the layers by network, repeated over the depth: "gnbn" has GN on the odd layers, counted from 1."""
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "kaiming": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "orthogonal": lambda weight: nn.init.orthogonal_(weight, 2**0.5),
}


def cells(settings: MlpSettings) -> list[Cell]:
    """Return the runs on all data (Figs. 2, 4), on subsets (Figs. 3, 5), and with other settings on the smallest subset."""
    seeds, sizes, smallest = settings.seeds, settings.train_sizes, [min(settings.train_sizes)]
    other_inits = [init for init in settings.inits if init != "default"]
    defaults = {"init": "default", "lr": settings.lr, "iterations": settings.iterations}
    with_defaults = [
        *grid(seeds, figure=["2, 4"], network=["bn", "gnbn"], train_size=["all"]),
        *grid(seeds, figure=["3, 5"], network=["bn", "gnbn", "none"], train_size=sizes),
        *grid(seeds, figure=["initializations"], network=["bn", "gnbn"], train_size=smallest, init=other_inits),
    ]
    without_norm = grid(
        seeds,
        figure=["no norm"],
        network=["none"],
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
    norms = NORMS[cell["network"]]
    model = mlp(num_inputs, 10, norms=[norms[k % len(norms)] for k in range(settings.depth)], width=settings.width)
    for layer in model:
        if isinstance(layer, nn.Linear) and cell["init"] != "default":
            INITS[cell["init"]](layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def measure(settings: MlpSettings, cell: Cell, _runs: Path) -> Measurement:
    """Train a network and return its errors in percent and the estimation shift of each of its batch norms.

    Returns:
        The values after training, and for runs on all data also `curves`, their values at every iteration.
    """
    x, labels = load_data(settings.data)
    use_all = cell["train_size"] == "all"
    generator = torch.Generator().manual_seed(cell["seed"])
    indices = torch.randperm(len(x), generator=generator)[: len(x) if use_all else cell["train_size"]]
    train_x, train_labels = x[indices], labels[indices]
    torch.manual_seed(cell["seed"])
    model = build_network(settings, cell, x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=cell["lr"])
    curves: dict[str, list[Any]] = {"train_error": [], "test_error": [], "esm_mean": [], "esm_std": []}
    for _ in range(cell["iterations"]):
        logits = model.train()(train_x)
        if use_all:
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
    return {**last, "input_shift": float((train_x.std(0) - x.std(0)).norm()), "curves": curves if use_all else None}


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


def classification_error(logits: Tensor, labels: Tensor) -> float:
    """Return the classification error in percent."""
    return round(100 * float((logits.argmax(1) != labels).double().mean()), 3)


def error_gap(network: str, iterations: slice) -> Values:
    """Return a function that averages test error − training error over iterations, for each seed."""

    def gap(rows: list[Row]) -> list[float]:
        runs = select(rows, "curves", figure="2, 4", network=network)
        pairs = [zip(run["train_error"][iterations], run["test_error"][iterations], strict=True) for run in runs]
        return [statistics.fmean(test - train for train, test in run) for run in pairs]

    return gap


def early_shift(network: str, layers: slice, iterations: slice) -> Values:
    """Return a function that averages ESM_σ over batch norms and iterations, for each seed."""

    def shift(rows: list[Row]) -> list[float]:
        runs = select(rows, "curves", figure="2, 4", network=network)
        return [statistics.fmean(statistics.fmean(profile[layers]) for profile in run["esm_std"][iterations]) for run in runs]

    return shift


def final_shift(layers: slice, **cell: Any) -> Values:
    """Return a function that averages ESM_σ after training over batch norms, for each seed."""
    return lambda rows: [statistics.fmean(profile[layers]) for profile in select(rows, "esm_std", **cell)]


def shift_growth(**cell: Any) -> Values:
    """Return a function that computes ESM_σ of the last third of the batch norms / that of the first third, for each seed."""

    def growth(rows: list[Row]) -> list[float]:
        profiles = select(rows, "esm_std", **cell)
        third = len(profiles[0]) // 3
        return [statistics.fmean(profile[-third:]) / statistics.fmean(profile[:third]) for profile in profiles]

    return growth


def claims(settings: MlpSettings) -> list[Claim]:
    """Return what the paper says about its figures, and about the network without norms."""
    early, late = slice(0, settings.early_iterations), slice(settings.early_iterations, None)
    first_third, last_third = slice(0, settings.depth // 3), slice(-(settings.depth // 3), None)
    result = [
        Claim(
            f"Fig. 2a: BN's gap of test and training error (points) is larger in the first {early.stop} iterations than later",
            "significant gaps in the first 30 epochs",
            error_gap("bn", early),
            error_gap("bn", late),
        ),
        Claim(
            "Fig. 2b: in those iterations ESM_σ is larger in the last third of the layers than in the first third",
            "deeper layers have potentially higher values",
            early_shift("bn", last_third, early),
            early_shift("bn", first_third, early),
        ),
        Claim(
            "Fig. 4a: in those iterations the gap is larger with BN than with GN on the odd layers",
            "gaps significantly reduced",
            error_gap("bn", early),
            error_gap("gnbn", early),
        ),
    ]
    for size in settings.train_sizes:
        bn, gnbn = ({"figure": "3, 5", "network": network, "train_size": size} for network in ("bn", "gnbn"))
        result += [
            Claim(
                f"Fig. 3c: |S| = {size}, ESM_σ of BN after training is larger in the last third of the layers than in the first",
                "higher value in deeper layers",
                final_shift(last_third, **bn),
                final_shift(first_third, **bn),
            ),
            Claim(
                f"Fig. 5a: |S| = {size}, ESM_σ of the last third of batch norms ÷ that of the first is larger in BN than in GNBN",
                "no remarkable difference among layers in GNBN",
                shift_growth(**bn),
                shift_growth(**gnbn),
            ),
            Claim(
                f"Fig. 5a: |S| = {size}, mean ESM_σ is larger with BN than with GN on the odd layers",
                "significantly lower in GNBN",
                final_shift(slice(None), **bn),
                final_shift(slice(None), **gnbn),
            ),
            Claim(
                f"Fig. 5b: |S| = {size}, the test error is larger with BN than with GN on the odd layers",
                "73.02 for BN" if size == 32 else "BN above GNBN",
                values_of("test_error", **bn),
                values_of("test_error", **gnbn),
            ),
        ]
    return result + _claims_without_norm(settings)


def _claims_without_norm(settings: MlpSettings) -> list[Claim]:
    """Return the text's comparison of BN with the network without norms, which depends on how the latter is trained."""
    smallest = min(settings.train_sizes)
    init, lr, iterations = settings.inits[-1], min(settings.no_norm_lrs), max(settings.no_norm_iterations)
    bn, stated = (values_of("test_error", figure="3, 5", network=network, train_size=smallest) for network in ("bn", "none"))
    trainable = values_of("test_error", figure="no norm", init=init, lr=lr, iterations=iterations)
    statement = f"text: test error at |S| = {smallest} is larger with BN than without norms"
    return [
        Claim(f"{statement} ({init} initialization, lr {lr}, {iterations} iterations)", "73.02 and 57.73", bn, trainable),
        Claim(
            f"{statement} (as stated: torch's initialization, lr {settings.lr}, {settings.iterations} iterations)",
            "73.02 and 57.73",
            bn,
            stated,
        ),
    ]


RECIPE = Recipe("xbn_mlp", {"smoke": SMOKE, "paper": PAPER}, cells, measure, claims, plot, tables)
