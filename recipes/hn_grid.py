"""hn Fig. 2: the mean of one norm with the deviation of another, all 36 pairs of six, at a large and a small batch.

    anynorm reproduce hn_grid --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on CIFAR-10 at batch 128 and 4, learning rate 0.1 for 128, 200 epochs. `desk` scales that down to
`anynorm.lab.trained.GRID` at batch 32 and 2, with 8 groups where the paper has 32. What is claimed is the ordering.

`paper` is the published setting, complete. `smoke` claims nothing.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import plot
from anynorm.lab.claims import Claim, pick
from anynorm.lab.recipe import Recipe, Settings, grid
from anynorm.lab.record import Record, Row
from anynorm.lab.trained import CIFAR, GRID, SMOKE, accuracy, config_of, loss, numbers, saved, there, told, trained
from anynorm.report import Rows

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 4], "cuts": ["bn", "gn:8", "en"]},
    "desk": GRID | {"batch_sizes": [32, 2], "cuts": ["bn", "in", "ln", "gn:8", "en", "en:8"]},
    "paper": CIFAR | {"batch_sizes": [128, 4], "cuts": ["bn", "in", "ln", "gn:32", "en", "en:32"]},
}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], mean=settings["cuts"], std=settings["cuts"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network with the mean of one norm and the deviation of another."""
    norm = cell["mean"] if cell["mean"] == cell["std"] else f"{cell['mean']}/{cell['std']}"
    return numbers(trained(config_of(settings, norm, cell["batch_size"], cell["seed"])))


def claims(settings: Settings) -> list[Claim]:
    """List what the paper reads from its figure."""
    (large, small), cuts = settings["batch_sizes"], settings["cuts"]
    wide = [cut for cut in cuts if cut.startswith("en")]

    def hn(std: str, size: int, paper: str) -> Claim:
        return _better("bn", std, ("bn", "bn"), size, paper)

    papers = {"en": "94.93 and 84.59", "en:8": "95.04 and 84.59", "en:32": "95.04 and 84.59"}
    found = [hn(std, small, papers[std]) for std in wide]
    found.append(hn("en", large, "95.18 and 95.05"))
    for std in wide:
        says = f"(bn, bn) loses more points from batch {large} to {small} than (bn, {std})"
        paper = "10.5 and 0.3" if std == "en" else "10.5 and -0.1"
        more, less = loss(large, small, mean="bn", std="bn"), loss(large, small, mean="bn", std=std)
        found.append(Claim(says, paper, more, less))
    for cut in cuts[1:]:
        same = {"in": 93.47, "ln": 92.90, "gn:8": 94.06, "gn:32": 94.06, "en": 93.69, "en:8": 93.70, "en:32": 93.70}[cut]
        found.append(_better("bn", "en", (cut, cut), small, f"94.93 and {same}"))
    says = f"pairs that differ are better than pairs that do not, on average (batch {small})"
    found.append(Claim(says, "most are", _average(cuts, small, apart=True), _average(cuts, small, apart=False)))
    return found


def _better(mean: str, std: str, other: tuple[str, str], size: int, paper: str) -> Claim:
    says = f"({mean}, {std}) is more accurate than ({', '.join(other)}) (batch {size})"
    one = accuracy(mean=mean, std=std, batch_size=size)
    return Claim(says, paper, one, accuracy(mean=other[0], std=other[1], batch_size=size))


def _average(cuts: list[str], size: int, *, apart: bool):  # type: ignore[no-untyped-def]
    """Give the mean accuracy of the pairs of different, or of the same cuts, a number a seed; runs that diverged guess."""
    pairs = [(mean, std) for mean in cuts for std in cuts if (mean != std) == apart]

    def found(rows: list[Row]) -> list[float]:
        by_pair = [pick(rows, "accuracy", mean=mean, std=std, batch_size=size) for mean, std in pairs]
        return [statistics.fmean(10.0 if value is None else value for value in seed) for seed in zip(*by_pair, strict=True)]

    return found


def tables(record: Record) -> list[Rows]:
    """Give the grid of each batch size: columns are means, rows deviations, as printed in the paper."""
    cuts = record.settings["cuts"]
    found = []
    for size in record.settings["batch_sizes"]:
        rows = [
            {"std \\ mean": std, **{mean: told(record.rows, mean=mean, std=std, batch_size=size) for mean in cuts}}
            for std in cuts
        ]
        found.append(Rows(rows, f"Test accuracy in %, batch {size}, mean ± sd over seeds; columns: mean, rows: deviation."))
    return found


def draw(record: Record, path: Path) -> list[Path]:
    """Draw both grids."""
    cuts, sizes = record.settings["cuts"], record.settings["batch_sizes"]
    fig = Figure(figsize=(12, 5), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes)), sizes, strict=True):
        cell = [[there(record.rows, mean=mean, std=std, batch_size=size) for mean in cuts] for std in cuts]
        table = [[statistics.fmean(values) if values else float("nan") for values in line] for line in cell]
        plot.grid(
            table, (cuts, cuts), ax, label="test accuracy (%)", xlabel="mean of", ylabel="deviation of", title=f"batch {size}"
        )
    return saved(fig, path)


RECIPE = Recipe("hn_grid", PRESETS, cells, measure, claims, draw, tables)
