"""xbn Table 3: XBNBlocks with label smoothing, mixup and a cosine schedule.

    anynorm reproduce xbn_strategies --preset desk

Paper: ResNet-50 on ImageNet with BN and with XBNBlock_GN. Learning rate ÷ 10 at epochs 30, 60, 90 of 100, or a cosine schedule;
label smoothing 0.1; mixup 0.2; all three.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   7500 images of CIFAR-10 at 16 × 16 pixels, ResNet-26, 3 epochs at batch 32 (`support.presets.BOTTLENECK`)
    paper  the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: 8 bottleneck blocks and 16 groups, so the claims are about the order of the two networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import BOTTLENECK, IMAGENET_XBN, tiny
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_of, accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

NETWORKS = ("BN", "XBN")


@dataclass(frozen=True, kw_only=True)
class StrategySettings(TrainingSettings):
    """Settings of two networks with several training strategies.

    Args:
        gn: the spec of GN in the XBN blocks.
    """

    gn: str


@dataclass(frozen=True)
class Strategy:
    """Fields of `Config` that a training strategy changes.

    Args:
        label_smoothing: amount of label smoothing.
        mixup: parameter of mixup.
        schedule: the learning rate schedule; None for that of the preset.
    """

    label_smoothing: float = 0.0
    mixup: float = 0.0
    schedule: str | None = None

    def apply(self, config: Config) -> Config:
        """Return a configuration with this strategy."""
        schedule = self.schedule or config.schedule
        return replace(config, label_smoothing=self.label_smoothing, mixup=self.mixup, schedule=schedule)


DESK = replace(BOTTLENECK.config, schedule=Step((0.3, 0.6, 0.9)), batch_size=32)
PRESETS = {
    "smoke": StrategySettings(seeds=2, training=Training(replace(tiny(DESK), batch_size=16), base_batch_size=32), gn="gn:16"),
    "desk": StrategySettings(seeds=3, training=Training(DESK, base_batch_size=32), gn="gn:16"),
    "paper": StrategySettings(seeds=3, training=IMAGENET_XBN, gn="gn:64"),
}
STRATEGIES = {
    "LS": Strategy(label_smoothing=0.1),
    "MixUp": Strategy(mixup=0.2),
    "COS": Strategy(schedule="cosine"),
    "all": Strategy(label_smoothing=0.1, mixup=0.2, schedule="cosine"),
}
TABLE_3 = {"LS": "77.41 and 76.70", "MixUp": "77.70 and 76.75", "COS": "77.60 and 76.72", "all": "78.22 and 77.16"}
"""The paper's accuracies in % of XBNBlock_GN and of BN."""


def cells(settings: StrategySettings) -> list[Cell]:
    """Return one cell per strategy, network and seed."""
    return grid(settings.seeds, strategy=STRATEGIES, network=NETWORKS)


def measure(settings: StrategySettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network with a strategy and return its accuracy."""
    norm = "bn" if cell["network"] == "BN" else f"xbn={settings.gn}"
    config = replace(settings.training.config, norm=norm, seed=cell["seed"])
    return train_cell(STRATEGIES[cell["strategy"]].apply(config), settings.training, runs)


def claims(_: StrategySettings) -> list[Claim]:
    """Return one claim per strategy."""
    return [
        Claim(
            f"XBNBlock_GN is more accurate than BN ({strategy})",
            paper,
            accuracy_of(strategy=strategy, network="XBN"),
            accuracy_of(strategy=strategy, network="BN"),
        )
        for strategy, paper in TABLE_3.items()
    ]


def tables(record: RecipeRecord[StrategySettings]) -> list[Table]:
    """Return the accuracy by network and strategy."""
    strategies = {strategy: strategy for strategy in STRATEGIES}
    rows = accuracy_rows(record.rows, "network", NETWORKS, "strategy", strategies)
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds. LS: label smoothing; COS: cosine schedule.")]


def plot(record: RecipeRecord[StrategySettings], path: Path) -> list[Path]:
    """Plot the accuracy of both networks by strategy."""
    lines = {
        network: {name: successful(record.rows, strategy=name, network=network) for name in STRATEGIES} for network in NETWORKS
    }
    fig, _ = draw.lines(lines, xlabel="training strategy", ylabel="test accuracy (%)", title="xbn Table 3")
    return save_figure(fig, path)


RECIPE = Recipe("xbn_strategies", PRESETS, cells, measure, claims, plot, tables)
