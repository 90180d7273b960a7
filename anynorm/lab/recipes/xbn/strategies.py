"""xbn Table 3: XBNBlocks with label smoothing, mixup and a cosine schedule.

    anynorm reproduce xbn_strategies --preset desk

Paper: ResNet-50 on ImageNet with BN and with XBNBlock_GN. Learning rate ÷ 10 at epochs 30, 60, 90 of 100, or a cosine schedule;
label smoothing 0.1; mixup 0.2; all three.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   7500 images of CIFAR-10 at 16 × 16 pixels, ResNet-26, 3 epochs at batch 32 (`support.presets.BOTTLENECK`)
    night  10 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-29, 15 epochs at batch 64 (`xbn.trained.NIGHT`)
    paper  the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

`desk` is a demonstration; it decides nothing unless its controls hold: regularizers that need long training are tested for 3
epochs. `night` has two strategies: "COS" and "all". Its numbers are subject to the pilot until a record exists. With mixup the
training accuracy is that on mixed images, so the control counts it with the label of the larger part. `paper` has no ResNet-101
and no ResNeXt-50, whose results are in the paper's supplement.

In `desk` and `night`, `xbn_blocks` has a cosine schedule too: the networks of "COS" are its BN and P2. Their numbers are in the
table here; the claim is made once, there (Table 1, P2 > BN). In `paper` the schedules differ, and "COS" is a claim of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import BOTTLENECK, IMAGENET_XBN, tiny
from anynorm.lab.recipes.support.quantities import accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.recipes.xbn.blocks import is_trained_here
from anynorm.lab.recipes.xbn.trained import NIGHT
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
        xbn: the layout of the XBN network; "" for GN in the second position of each block.
        strategies: names of `STRATEGIES`.
        min_train_accuracy: training accuracy in % from which a network counts as trained.
    """

    gn: str
    xbn: str = ""
    strategies: tuple[str, ...] = ("LS", "MixUp", "COS", "all")
    min_train_accuracy: float = 25.0


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
    "smoke": StrategySettings(
        seeds=2, training=Training(replace(tiny(DESK), batch_size=16), base_batch_size=32), gn="gn:16", min_train_accuracy=0.0
    ),
    "desk": StrategySettings(seeds=3, training=Training(DESK, base_batch_size=32), gn="gn:16"),
    "night": StrategySettings(
        seeds=8,
        training=NIGHT,
        gn="gn:16",
        xbn="xbn.p2.stem=gn:16",
        strategies=("COS", "all"),
        min_train_accuracy=50.0,
    ),
    "paper": StrategySettings(seeds=3, training=IMAGENET_XBN, gn="gn:64", xbn="xbn.p2.stem=gn:64", min_train_accuracy=50.0),
}
STRATEGIES = {
    "LS": Strategy(label_smoothing=0.1),
    "MixUp": Strategy(mixup=0.2),
    "COS": Strategy(schedule="cosine"),
    "all": Strategy(label_smoothing=0.1, mixup=0.2, schedule="cosine"),
}
TABLE_3 = {
    "LS": Published(77.41, 76.70),
    "MixUp": Published(77.70, 76.75),
    "COS": Published(77.60, 76.72),
    "all": Published(78.22, 77.16),
}
"""The paper's accuracies in % of XBNBlock_GN and of BN."""


def with_strategy(training: Training, strategy: str) -> Training:
    """Return a training with a strategy, one of `STRATEGIES`."""
    return replace(training, config=STRATEGIES[strategy].apply(training.config))


def cells(settings: StrategySettings) -> list[Cell]:
    """Return one cell per strategy, network and seed."""
    return grid(settings.seeds, strategy=settings.strategies, network=NETWORKS)


def measure(settings: StrategySettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network with a strategy and return its accuracy."""
    norm = "bn" if cell["network"] == "BN" else settings.xbn or f"xbn={settings.gn}"
    training = with_strategy(settings.training, cell["strategy"])
    return train_cell(replace(training.config, norm=norm, seed=cell["seed"]), training, runs)


def controls(settings: StrategySettings) -> list[Control]:
    """Return the control that networks have learned."""
    return [Learned(settings.min_train_accuracy)]


def claims(settings: StrategySettings) -> list[Larger]:
    """Return one claim per strategy, except for those whose networks are trained, and compared, by `xbn_blocks`."""
    return [
        Larger(
            statement=f"XBNBlock_GN is more accurate than BN ({strategy})",
            source=Source("xbn", "Table 3"),
            published=TABLE_3[strategy],
            larger=accuracy_of(strategy=strategy, network="XBN"),
            smaller=accuracy_of(strategy=strategy, network="BN"),
        )
        for strategy in settings.strategies
        if not is_trained_here(with_strategy(settings.training, strategy))
    ]


def tables(record: RecipeRecord[StrategySettings]) -> list[Table]:
    """Return the accuracy by network and strategy."""
    strategies = {strategy: strategy for strategy in record.settings.strategies}
    rows = accuracy_rows(record.rows, "network", NETWORKS, "strategy", strategies)
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds. LS: label smoothing; COS: cosine schedule.")]


def plot(record: RecipeRecord[StrategySettings], path: Path) -> list[Path]:
    """Plot the accuracy of both networks by strategy."""
    lines = {
        network: {name: successful(record.rows, strategy=name, network=network) for name in record.settings.strategies}
        for network in NETWORKS
    }
    fig, _ = draw.lines(lines, xlabel="training strategy", ylabel="test accuracy (%)", title="xbn Table 3")
    return save_figure(fig, path)


RECIPE = Recipe("xbn_strategies", PRESETS, cells, measure, claims, plot, tables, controls)
