"""Recipes that train each of several networks with each of several norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Check, Claim
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.learned import learned
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True)
class Network:
    """A network.

    Args:
        model: `Config.model`.
        width: `Config.width`.
    """

    model: str
    width: float | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkGrid(TrainingSettings):
    """Settings of a grid of networks × norms.

    Args:
        networks: the networks by label.
        norms: the norms of the network as `Config.norm` has them, by label.
        lrs: learning rates by the label of a norm, instead of `training.config.lr`.
        min_train_accuracy: training accuracy in % that every network in a claim must reach; None for 2.5 × chance.
    """

    networks: Mapping[str, Network]
    norms: Mapping[str, str]
    lrs: Mapping[str, float] = field(default_factory=dict)
    min_train_accuracy: float | None = None


def controls(settings: NetworkGrid) -> list[Control]:
    """Return the default control: every network in a claim has learned."""
    return [learned(settings.training.config.data, settings.min_train_accuracy)]


def network_grid_recipe(
    name: str,
    presets: Mapping[str, NetworkGrid],
    claims: Callable[[NetworkGrid], Sequence[Claim | Check]],
    title: str,
    controls: Callable[[NetworkGrid], list[Control]] = controls,
) -> Recipe[NetworkGrid]:
    """Return a recipe that measures a grid of networks × norms.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
        title: the title of the plot.
        controls: a function that returns what must be true before a claim is tested.
    """
    return Recipe(name, presets, cells, measure, claims, partial(plot, title=title), tables, controls=controls)


def cells(settings: NetworkGrid) -> list[Cell]:
    """Return one cell per network, norm and seed."""
    return grid(settings.seeds, network=settings.networks, norm=settings.norms)


def measure(settings: NetworkGrid, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell and return its accuracy."""
    network, norm = settings.networks[cell["network"]], settings.norms[cell["norm"]]
    config = settings.training.config
    lr = settings.lrs.get(cell["norm"], config.lr)
    config = replace(config, model=network.model, width=network.width, norm=norm, lr=lr, seed=cell["seed"])
    return train_cell(config, settings.training, runs)


def tables(record: RecipeRecord[NetworkGrid]) -> list[Table]:
    """Return the accuracy by network and norm."""
    norms = {norm: norm for norm in record.settings.norms}
    rows = accuracy_rows(record.rows, "network", record.settings.networks, "norm", norms)
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: RecipeRecord[NetworkGrid], path: Path, title: str) -> list[Path]:
    """Plot the accuracy of each network by norm."""
    lines = {
        network: {norm: successful(record.rows, network=network, norm=norm) for norm in record.settings.norms}
        for network in record.settings.networks
    }
    fig, ax = draw.lines(lines, xlabel="norm", ylabel="test accuracy (%)", title=title)
    for points in ax.containers:  # a line would suggest values between two norms
        points[0].set_linestyle("none")
    return save_figure(fig, path)
