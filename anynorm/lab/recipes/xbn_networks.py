"""xbn Table 2: XBNBlocks in ResNet-101, ResNeXt-50 and ResNeXt-101.

    anynorm reproduce xbn_networks --preset desk

Paper: ResNet-50 and -101, ResNeXt-50 and -101 on ImageNet with BN, with GN, and with XBNBlock_GN in every block or in every
second one (D2). 256 images per step, learning rate 0.1, 100 epochs.

    smoke  5 s       64 digits, one epoch, ResNet-26; checks that the code works and claims nothing
    desk   10 min    2000 images of CIFAR-10 at 8 × 8 pixels, ResNet-101 ×0.25 and ResNeXt-50 ×0.25, 3 epochs at batch size 32
    paper  not run   the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: networks of a quarter of the width, 16 groups, and 186 steps, so the claims are about the order of the
norms early in training. After so few steps the networks with GN alone are still at chance. The learning rate is 0.01 instead of
0.05 (`support.presets.DESK`), at which ResNet-101 with BN stayed at chance in a trial. ResNet-50 and D2 are left out
(`xbn_blocks` has D2, in a ResNet-26). The time is that of one process.

The paper does not say which ResNeXt-101 it has; the authors' scripts have 32 × 8d, and 32 groups in the networks with GN alone.
They train ResNeXt-101 on four devices and the others on two; `paper` has two throughout, which changes the batches of BN from 64
to 128 images. IBN-Net and SN are left out: the paper quotes their accuracies from other papers.
"""

from __future__ import annotations

from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.presets import DESK as DESK_RESNET_10
from anynorm.lab.recipes.support.presets import IMAGENET_XBN, TINY, TRAIN
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import accuracy_mean_sd, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

DESK: Settings = DESK_RESNET_10 | {
    "train": TRAIN | {"num_train": 2000, "num_test": 2000, "lr": 0.01, "weight_decay": 1e-4},
    "batch_size": 32,
    "networks": {"ResNet-101": {"model": "resnet101", "width": 0.25}, "ResNeXt-50": {"model": "resnext50", "width": 0.25}},
    "norms": {"BN": "bn", "GN": "gn:16", "XBN": "xbn=gn:16"},
}
PRESETS: dict[str, Settings] = {
    "smoke": DESK
    | {"train": DESK["train"] | TINY, "seeds": 2, "batch_size": 32, "networks": {"ResNet-50": {"model": "resnet26"}}},
    "desk": DESK,
    "paper": IMAGENET_XBN
    | {
        "networks": {
            "ResNet-50": {"model": "resnet50"},
            "ResNet-101": {"model": "resnet101"},
            "ResNeXt-50": {"model": "resnext50"},
            "ResNeXt-101": {"model": "resnext101"},
        },
        "norms": {"BN": "bn", "GN": "gn:32", "XBN": "xbn=gn:64", "XBN-D2": "xbn.d2=gn:64"},
    },
}
TABLE_2: dict[str, dict[str, float]] = {
    "ResNet-50": {"BN": 76.29, "GN": 75.73, "XBN": 77.40, "XBN-D2": 77.39},
    "ResNet-101": {"BN": 77.65, "GN": 77.18, "XBN": 78.21, "XBN-D2": 78.63},
    "ResNeXt-50": {"BN": 77.06, "GN": 75.67, "XBN": 77.66, "XBN-D2": 77.63},
    "ResNeXt-101": {"BN": 79.17, "GN": 78.02, "XBN": 79.84, "XBN-D2": 79.72},
}
"""The paper's accuracy in %."""


def cells(settings: Settings) -> list[Row]:
    """Return one cell per network, norm and seed."""
    return grid(settings["seeds"], network=settings["networks"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a network and return its accuracy."""
    network, norm = settings["networks"][cell["network"]], settings["norms"][cell["norm"]]
    return train_cell(settings, runs, norm, settings["batch_size"], cell["seed"], **network)


def claims(settings: Settings) -> list[Claim]:
    """Return the orders of each network: XBNBlocks are better than BN, and BN is better than GN."""
    result = []
    for network in settings["networks"]:
        paper = TABLE_2[network]
        for a, b in (("XBN", "BN"), ("XBN-D2", "BN"), ("BN", "GN"), ("XBN", "GN")):
            if {a, b} <= settings["norms"].keys():
                result.append(more_accurate(a, b, f"{paper[a]:.2f} and {paper[b]:.2f}", network=network))
    return result


def tables(record: Record) -> list[Table]:
    """Return the accuracy by network and norm."""
    rows = []
    for network in record.settings["networks"]:
        accuracies = {norm: accuracy_mean_sd(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        rows.append({"network": network, **accuracies})
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the accuracy of each network by norm."""
    lines = {
        network: {norm: successful(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        for network in record.settings["networks"]
    }
    fig, ax = draw.lines(lines, xlabel="norm", ylabel="test accuracy (%)", title="xbn Table 2")
    for points in ax.containers:  # a line would suggest values between two norms
        points[0].set_linestyle("none")
    return save_figure(fig, path)


RECIPE = Recipe("xbn_networks", PRESETS, cells, measure, claims, plot, tables)
