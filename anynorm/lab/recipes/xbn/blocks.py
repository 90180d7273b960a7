"""xbn Table 1 and Fig. 7: position and number of batch-free norms in a network.

    anynorm reproduce xbn_blocks --preset desk

Paper: ResNet-50 on ImageNet, batch size 256, 100 epochs. One norm of a bottleneck block is replaced: by GN with 64 groups in
position 1, 2 or 3 of every block (P1, P2, P3), or by GN or IN in position 2 of every n-th block (Dn). GN and IN are also
compared as the only norm of the network.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   7500 images of CIFAR-10 at 16 × 16 pixels, ResNet-26, 3 epochs at batch 32 (`support.presets.BOTTLENECK`)
    paper  the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: 8 blocks and 16 groups, so the claims are about the order of the networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import BOTTLENECK, IMAGENET_XBN, tiny
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_of, result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class BlockSettings(TrainingSettings):
    """Settings of networks with batch-free norms in some blocks.

    Args:
        gn: the spec of GN.
        every: distances n of the blocks with a batch-free norm (Dn), 1 first.
    """

    gn: str
    every: tuple[int, ...]


PRESETS = {
    "smoke": BlockSettings(
        seeds=2,
        training=Training(replace(tiny(BOTTLENECK.config), batch_size=16), base_batch_size=32),
        gn="gn:16",
        every=(1, 2),
    ),
    "desk": BlockSettings(
        seeds=3,
        training=replace(BOTTLENECK, config=replace(BOTTLENECK.config, batch_size=32)),
        gn="gn:16",
        every=(1, 2, 4, 8),
    ),
    "paper": BlockSettings(seeds=3, training=IMAGENET_XBN, gn="gn:64", every=(1, 2, 4, 8)),
}


def norms(settings: BlockSettings) -> dict[str, str]:
    """Return the norms of each network as `Config.norm` has them, by the paper's label."""
    gn = settings.gn
    result = {"BN": "bn", "GN": gn, "IN": "in"}
    result |= {f"P{position}": f"xbn.p{position}={gn}" for position in (1, 2, 3)}
    result |= {f"GN-D{every}": f"xbn.d{every}={gn}" for every in settings.every if every > 1}
    result |= {f"IN-D{every}": "xbn=in" if every == 1 else f"xbn.d{every}=in" for every in settings.every}
    return result


def cells(settings: BlockSettings) -> list[Cell]:
    """Return one cell per network and seed."""
    return grid(settings.seeds, network=norms(settings))


def measure(settings: BlockSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy."""
    config = replace(settings.training.config, norm=norms(settings)[cell["network"]], seed=cell["seed"])
    return train_cell(config, settings.training, runs)


def claims(settings: BlockSettings) -> list[Claim]:
    """Return the orders of the table and the figure."""
    every = settings.every[1:]
    result = [
        _more_accurate("P1", "BN", "77.08 and 76.29"),
        _more_accurate("P2", "BN", "77.40 and 76.29"),
        _more_accurate("P3", "BN", "76.76 and 76.29"),
        _more_accurate("P2", "P1", "77.40 and 77.08"),
        _more_accurate("P2", "P3", "77.40 and 76.76"),
        _more_accurate("P2", "GN", "77.40 and 75.73 (the text has 75.63)"),
        _more_accurate("BN", "GN", "76.29 and 75.73 (the text has 75.63)"),
    ]
    result += [_more_accurate(f"GN-D{n}", "BN", "77.39 and 76.29" if n == 2 else "Fig. 7: all are better than BN") for n in every]
    for more_blocks, fewer_blocks in pairwise(["P2", *(f"GN-D{n}" for n in every)]):
        result.append(_more_accurate(more_blocks, fewer_blocks, "Fig. 7: fewer XBNBlocks are worse"))
    if 4 in every:
        result.append(_more_accurate("IN-D4", "BN", "77.19 and 76.29"))
        result.append(_more_accurate("IN-D4", "IN-D1", "77.19 and 74.99"))
    result.append(_more_accurate("BN", "IN-D1", "76.29 and 74.99"))
    return result


def _more_accurate(network: str, other: str, paper: str) -> Claim:
    statement = f"{network} is more accurate than {other}"
    return Claim(statement, paper, accuracy_of(network=network), accuracy_of(network=other))


def tables(record: RecipeRecord[BlockSettings]) -> list[Table]:
    """Return the accuracy of each network."""
    rows = [
        {"network": label, "norms": norm, "accuracy": result_over_seeds(record.rows, "accuracy", network=label)}
        for label, norm in norms(record.settings).items()
    ]
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds. P2 is also GN-D1.")]


def plot(record: RecipeRecord[BlockSettings], path: Path) -> list[Path]:
    """Plot the accuracy of each network."""
    points = {"test accuracy": {label: successful(record.rows, network=label) for label in norms(record.settings)}}
    fig, ax = draw.lines(points, ylabel="test accuracy (%)", title="xbn Table 1 (P1 to P3) and Fig. 7")
    ax.get_legend().remove()
    ax.get_lines()[0].set_linestyle("none")
    ax.tick_params(axis="x", rotation=45)
    return save_figure(fig, path)


RECIPE = Recipe("xbn_blocks", PRESETS, cells, measure, claims, plot, tables)
