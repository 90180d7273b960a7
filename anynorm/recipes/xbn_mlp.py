"""xbn Figs. 2 to 5: estimation shift in a 20-layer MLP with BN, and with GN on the odd layers.

    anynorm reproduce xbn_mlp --preset paper --processes 2        (data: MNIST's test set)

The paper's own setting; `paper` scales nothing down. 20 layers of 128 neurons, ReLU, full-batch gradient descent, learning rate
0.1, 80 iterations, running averages in which the newest batch weighs 0.1 (the text's α = 0.9 weighs the old). S' is MNIST's test
set; S is S' itself (Figs. 2, 4) or a random part of it (Figs. 3, 5). Inputs are pixels of 0 to 1.

The paper does not say how weights start: here as torch's layers do. It does not say how the network without BN was trained
either; at the stated rate and length it does not train from any of four starts, so other rates and lengths are measured too.

`smoke` takes scikit-learn's digits, 6 layers and 10 iterations: it shows that the parts work together, and claims nothing.
`paper` took 36 minutes on one core.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import plot
from anynorm.data.readers import digits, mnist
from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.models.mlp import mlp
from anynorm.recipes.support.claims import Claim, pick, spread
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

PAPER: Settings = {
    "data": "mnist",
    "depth": 20,
    "width": 128,
    "lr": 0.1,
    "iterations": 80,
    "gap": 30,
    "sizes": [32, 128, 256, 512, 1024],
    "inits": ["default", "kaiming", "xavier", "orthogonal"],
    "plain_rates": [0.01, 0.03, 0.1],
    "plain_iterations": [80, 800],
    "seeds": 5,
}
SMOKE: Settings = PAPER | {
    "data": "digits",
    "depth": 6,
    "width": 32,
    "iterations": 10,
    "gap": 5,
    "sizes": [32, 64],
    "inits": ["default"],
    "plain_rates": [0.1],
    "plain_iterations": [10],
    "seeds": 2,
}
INITS = {
    "kaiming": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "orthogonal": lambda weight: nn.init.orthogonal_(weight, 2**0.5),
}


def cells(settings: Settings) -> list[Row]:
    """List the runs: whole data (Figs. 2, 4), parts of it (Figs. 3, 5), and other starts at the smallest part."""
    seeds = settings["seeds"]
    smallest = min(settings["sizes"])
    usual = {"init": "default", "lr": settings["lr"], "iterations": settings["iterations"]}
    whole = [cell | usual for cell in grid(seeds, figure=["2, 4"], net=["bn", "gnbn"], size=["all"])]
    parts = [cell | usual for cell in grid(seeds, figure=["3, 5"], net=["bn", "gnbn", "none"], size=settings["sizes"])]
    others = [init for init in settings["inits"] if init != "default"]
    starts = [
        cell | {**usual, "init": cell["init"]}
        for cell in grid(seeds, figure=["starts"], net=["bn", "gnbn"], size=[smallest], init=others)
    ]
    plain = grid(
        seeds,
        figure=["plain"],
        net=["none"],
        size=[smallest],
        init=settings["inits"],
        lr=settings["plain_rates"],
        iterations=settings["plain_iterations"],
    )
    return whole + parts + starts + plain


def data(name: str) -> tuple[Tensor, Tensor]:
    """Give the images of S', flat, as numbers of 0 to 1, and their labels."""
    images, labels = {"mnist": lambda: mnist("test"), "digits": digits}[name]()
    return images.flatten(1).float() / 255, labels


def network(settings: Settings, cell: Row, inputs: int) -> nn.Sequential:
    """Make the network of a cell; gnbn has GN on the odd layers, counted from 1."""
    norms = {"bn": ["bn"], "gnbn": ["gn:4", "bn"], "none": ["none"]}[cell["net"]]
    model = mlp(inputs, 10, norms=[norms[k % len(norms)] for k in range(settings["depth"])], width=settings["width"])
    for layer in model:
        if isinstance(layer, nn.Linear) and cell["init"] != "default":
            INITS[cell["init"]](layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network; give its errors in percent, and the estimation shift of each of its batch norms."""
    x, labels = data(settings["data"])
    chance = torch.Generator().manual_seed(cell["seed"])
    chosen = torch.randperm(len(x), generator=chance)[: len(x) if cell["size"] == "all" else cell["size"]]
    torch.manual_seed(cell["seed"])
    model = network(settings, cell, x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=cell["lr"])
    curves: dict[str, list[Any]] = {"train": [], "test": [], "esm_mean": [], "esm_std": []}
    for _ in range(cell["iterations"]):
        logits = model.train()(x[chosen])
        if cell["size"] == "all":
            curves["train"].append(error(logits, labels[chosen]))
            look(model, x, labels, curves)
        loss = nn.functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        curves["train"].append(error(model.train()(x[chosen]), labels[chosen]))
        look(model, x, labels, curves)
    last = {name: values[-1] for name, values in curves.items()}
    input_shift = float((x[chosen].std(0) - x.std(0)).norm())
    return {**last, "input_shift": input_shift, "curves": curves if cell["size"] == "all" else None}


@torch.no_grad()
def look(model: nn.Sequential, x: Tensor, labels: Tensor, curves: dict[str, list[Any]]) -> None:
    """Add the test error and the estimation shift as they are now to the curves."""
    curves["test"].append(error(model.eval()(x), labels))
    if any(getattr(layer, "running_mean", None) is not None for layer in model):
        report = estimation_shift(model, [x], trial_samples=0)
        for name in ("esm_mean", "esm_std"):
            curves[name].append([round(row[name], 5) for row in report])
    else:
        for name in ("esm_mean", "esm_std"):
            curves[name].append([])


def error(logits: Tensor, labels: Tensor) -> float:
    """Give the classification error in percent."""
    return round(100 * float((logits.argmax(1) != labels).double().mean()), 3)


def gap(rows: list[Row], net: str, steps: slice) -> list[float]:
    """Give the mean of test error less training error over some iterations, by seed."""
    curves = pick(rows, "curves", figure="2, 4", net=net)
    return [statistics.fmean(b - a for a, b in zip(run["train"][steps], run["test"][steps], strict=True)) for run in curves]


def depth(rows: list[Row], part: slice, **cell: Any) -> list[float]:
    """Give the mean ESM_σ over a part of the batch norms at the end of training, by seed."""
    return [statistics.fmean(profile[part]) for profile in pick(rows, "esm_std", **cell)]


def growth(rows: list[Row], **cell: Any) -> list[float]:
    """Give the ratio of ESM_σ in the last third of a network's batch norms to that in the first, by seed."""
    count = len(pick(rows, "esm_std", **cell)[0]) // 3
    pairs = zip(depth(rows, slice(-count, None), **cell), depth(rows, slice(count), **cell), strict=True)
    return [deep / shallow for deep, shallow in pairs]


def early(rows: list[Row], net: str, part: slice, steps: slice) -> list[float]:
    """Give the mean ESM_σ over a part of the batch norms and some iterations, by seed."""
    curves = pick(rows, "curves", figure="2, 4", net=net)
    return [statistics.fmean(statistics.fmean(layers[part]) for layers in run["esm_std"][steps]) for run in curves]


def claims(settings: Settings) -> list[Claim]:
    """List what the paper says."""
    first = slice(0, settings["gap"])
    last = slice(settings["gap"], None)
    thirds = slice(0, settings["depth"] // 3), slice(-(settings["depth"] // 3), None)
    found = [
        Claim(
            f"Fig. 2a: BN's gap of test and training error (points) in the first {settings['gap']} iterations, against later",
            "significant gaps in the first 30 epochs",
            lambda rows: gap(rows, "bn", first),
            lambda rows: gap(rows, "bn", last),
        ),
        Claim(
            "Fig. 2b: in those iterations ESM_σ is larger in the last third of the layers than in the first",
            "deeper layers have potentially higher values",
            lambda rows: early(rows, "bn", thirds[1], first),
            lambda rows: early(rows, "bn", thirds[0], first),
        ),
        Claim(
            "Fig. 4a: the gap with BN is larger than with GN on the odd layers",
            "gaps significantly reduced",
            lambda rows: gap(rows, "bn", first),
            lambda rows: gap(rows, "gnbn", first),
        ),
    ]
    for size in settings["sizes"]:
        found += _about_size(size, thirds)
    small = min(settings["sizes"])
    init, rate, iterations = settings["inits"][-1], min(settings["plain_rates"]), max(settings["plain_iterations"])
    found.append(
        Claim(
            f"text: test error at |S| = {small}, BN above no norm ({init} start, rate {rate}, {iterations} iterations)",
            "73.02 and 57.73",
            lambda rows: pick(rows, "test", figure="3, 5", net="bn", size=small),
            lambda rows: pick(rows, "test", figure="plain", init=init, lr=rate, iterations=iterations),
        )
    )
    found.append(
        Claim(
            f"text: the same, without norm as the text has it (torch's start, {settings['rate']}, {settings['iterations']})",
            "73.02 and 57.73",
            lambda rows: pick(rows, "test", figure="3, 5", net="bn", size=small),
            lambda rows: pick(rows, "test", figure="3, 5", net="none", size=small),
        )
    )
    return found


def _about_size(size: int, thirds: tuple[slice, slice]) -> list[Claim]:
    """List what the paper says about networks trained on a part of the data."""
    bn, gnbn = ({"figure": "3, 5", "net": net, "size": size} for net in ("bn", "gnbn"))
    return [
        Claim(
            f"Fig. 3c: |S| = {size}, after training ESM_σ of BN is larger in the last third of the layers than in the first",
            "higher value in deeper layers",
            lambda rows: depth(rows, thirds[1], **bn),
            lambda rows: depth(rows, thirds[0], **bn),
        ),
        Claim(
            f"Fig. 5a: |S| = {size}, ESM_σ of the last third of the batch norms over that of the first, BN against GNBN",
            "no remarkable difference among layers in GNBN",
            lambda rows: growth(rows, **bn),
            lambda rows: growth(rows, **gnbn),
        ),
        Claim(
            f"Fig. 5a: |S| = {size}, mean ESM_σ is larger with BN than with GN on the odd layers",
            "significantly lower in GNBN",
            lambda rows: depth(rows, slice(None), **bn),
            lambda rows: depth(rows, slice(None), **gnbn),
        ),
        Claim(
            f"Fig. 5b: |S| = {size}, test error with BN is above that with GN on the odd layers",
            "73.02 for BN" if size == 32 else "BN above GNBN",
            lambda rows: pick(rows, "test", **bn),
            lambda rows: pick(rows, "test", **gnbn),
        ),
    ]


def tables(record: Record) -> list[Table]:
    """Tell test errors by size, and by start, rate and length at the smallest size."""
    sizes, settings = record.settings["sizes"], record.settings
    by_size = []
    for net in ("bn", "gnbn", "none"):
        errors = {f"|S| = {size}": spread(pick(record.rows, "test", figure="3, 5", net=net, size=size)) for size in sizes}
        by_size.append({"net": net, **errors})
    starts = []
    for init in settings["inits"]:
        row = {"start": init}
        for net in ("bn", "gnbn"):
            runs = [run for run in record.rows if run["net"] == net and run["size"] == min(sizes) and run["init"] == init]
            row[net] = spread([run["test"] for run in runs])
        for iterations in settings["plain_iterations"]:
            for rate in settings["plain_rates"]:
                cell = {"figure": "plain", "init": init, "lr": rate, "iterations": iterations}
                trained = max(pick(record.rows, "train", **cell)) == 0
                row[f"none, {rate} × {iterations}"] = spread(pick(record.rows, "test", **cell)) + (" †" if trained else "")
        starts.append(row)
    return [
        Table(
            by_size,
            "Test error in percent, by the number of training images; the paper prints 73.02 (BN) and 57.73 (none) at 32.",
        ),
        Table(
            starts,
            f"Test error at |S| = {min(sizes)} by start; for the network without norm by rate × iterations. †: no training error "
            "left with any seed. The paper's 57.73 is met where the network without norm trains, at a third of the stated rate.",
        ),
    ]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw Figs. 2 and 4 in one picture, Figs. 3 and 5 in another."""
    whole, parts = (path.with_name(f"{path.name}.{figures}.png") for figures in ("figs24", "figs35"))
    draw_whole(record.rows, record.settings, whole)
    draw_parts(record.rows, record.settings, parts)
    return [whole, parts]


def draw_whole(rows: list[Row], settings: Settings, path: Path) -> None:
    """Draw errors, and the shift of some layers, over the iterations."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    fig = Figure(figsize=(13, 7), layout="constrained")
    axes = fig.subplots(2, 3)
    track = sorted({round(1 + k * (settings["depth"] - 1) / 5) for k in range(6)})
    for (errors, sigma, mu), net in zip(axes, ("bn", "gnbn"), strict=True):
        runs: Any = pick(rows, "curves", figure="2, 4", net=net)
        for name, colour in (("train", plot.COLOURS[0]), ("test", plot.COLOURS[1])):
            for run in runs:
                errors.plot(run[name], color=colour, alpha=0.25, lw=1)
            errors.plot(torch.tensor([run[name] for run in runs]).mean(0), color=colour, label=name)
        errors.set(xlabel="iteration", ylabel="error (%)", ylim=(0, 100), title=f"{net.upper()}: errors, {len(runs)} seeds")
        for ax, name, symbol in ((sigma, "esm_std", r"\sigma"), (mu, "esm_mean", r"\mu")):
            table = torch.tensor([run[name] for run in runs]).mean(0).T
            step = settings["depth"] // len(table)
            for layer in [
                layer for layer in range(step, settings["depth"] + 1, step) if min(abs(layer - k) for k in track) < step
            ]:
                colour = colormaps["viridis"](0.9 * layer / settings["depth"])
                ax.plot(table[layer // step - 1], color=colour, label=f"layer {layer}")
            ax.set(xlabel="iteration", ylabel=rf"$\mathrm{{ESM}}_{symbol}$", title=f"{net.upper()}: shift of some batch norms")
        for ax in (errors, sigma, mu):
            ax.legend(frameon=False)
    fig.savefig(path, dpi=110)


def draw_parts(rows: list[Row], settings: Settings, path: Path) -> None:
    """Draw the shift over the layers, and the test error, for each size of S."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(13, 4.2), layout="constrained")
    axes = fig.subplots(1, 3)
    small = min(settings["sizes"])
    for ax, net in zip(axes, ("bn", "gnbn"), strict=False):
        profiles = {}
        for size in settings["sizes"]:
            profile = torch.tensor(pick(rows, "esm_std", figure="3, 5", net=net, size=size)).mean(0)
            step = settings["depth"] // len(profile)
            profiles[f"|S| = {size}"] = [{"esm_std": float(esm), "layer": step * k} for k, esm in enumerate(profile, 1)]
        plot.profiles(profiles, "esm_std", ax)
        ax.set(title=f"{net.upper()} at the end of training", yscale="log", ylim=(0.02, 12))
    for net, colour in (("bn", plot.COLOURS[0]), ("gnbn", plot.COLOURS[1])):
        errors = [pick(rows, "test", figure="3, 5", net=net, size=size) for size in settings["sizes"]]
        means, sds = [statistics.fmean(values) for values in errors], [statistics.stdev(values) for values in errors]
        axes[2].errorbar(range(len(errors)), means, sds, fmt="o-", capsize=3, color=colour, label=net.upper())
    if small == 32:
        axes[2].plot([0], [73.02], "x", color=plot.COLOURS[5], label="paper: BN 73.02")
    axes[2].set_xticks(range(len(settings["sizes"])), settings["sizes"])
    axes[2].set(
        xlabel="|S|, training images", ylabel="test error (%)", title=f"Test error, mean ± sd of {settings['seeds']} seeds"
    )
    axes[2].legend(frameon=False)
    fig.savefig(path, dpi=110)


RECIPE = Recipe("xbn_mlp", {"smoke": SMOKE, "paper": PAPER}, cells, measure, claims, draw, tables)
