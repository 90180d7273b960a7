"""xbn Fig. 8: accuracy of BN and XBN networks with perturbed running statistics.

    anynorm reproduce xbn_perturbation --preset desk

Paper: ResNet-50 with BN, XBNBlock_GN and XBNBlock_IN, trained on ImageNet. The statistics of the first BN of the first six blocks
are perturbed by noise of magnitude Δ (eq. 5).

    smoke  untrained ResNet-8 on scikit-learn's digits; checks that the code works and claims nothing
    desk   ResNet-56 pretrained on CIFAR-10 and its XBN conversions; 2000 test images

Scaled down in `desk`: the conversions are NOT trained. γ and β of the inserted norms are fitted to the pretrained network with
1024 training images (`anynorm.xbn(fit=…)`), so the claims are about the order of converted networks, not about the paper's
accuracies. GN has 4 groups: the first stage has 16 channels, where the paper's 64 groups would make every GN an IN.

A basic block has two norms. The batch norm that is left in a converted block is its first (the second is replaced, P3) or its
second (the first is replaced, P1 = P2); each is compared with the plain network perturbed at the same position. The paper does
not say whether eq. 5 draws one δ per layer or per channel, so both are measured. Verdicts compare five draws of noise on one
network each: they say nothing about networks trained with other seeds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from anynorm import draw, xbn
from anynorm.diagnostics.perturb import PER, perturbation_curve
from anynorm.io.checkpoints import read_state_dict
from anynorm.lab.data.cifar_weights import fetch_cifar_weights
from anynorm.lab.data.readers import cifar10, digits
from anynorm.lab.models.cifar_resnet import CifarResNet
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import Values, save_figure, select
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import find_norms


@dataclass(frozen=True, kw_only=True)
class PerturbationSettings(Settings):
    """Settings of perturbed running statistics.

    Args:
        data: "cifar10" or "digits".
        num_test: number of test images.
        num_fit: number of training images to which the inserted norms are fitted.
        depth: depth of the ResNet.
        num_blocks: number of first blocks whose norms are perturbed.
        deltas: magnitudes Δ of the noise.
        norms: the norm that is inserted, "bn" for none.
        positions: "first" and "second" norm of a block.
        num_draws: number of draws of the noise.
    """

    data: str
    num_test: int
    num_fit: int
    depth: int
    num_blocks: int
    deltas: tuple[float, ...]
    norms: tuple[str, ...]
    positions: tuple[str, ...]
    num_draws: int


DESK = PerturbationSettings(
    seeds=1,
    data="cifar10",
    num_test=2000,
    num_fit=1024,
    depth=56,
    num_blocks=6,
    deltas=(0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    norms=("bn", "gn:4", "in"),
    positions=("first", "second"),
    num_draws=5,
)
SMOKE = replace(DESK, data="digits", num_test=64, num_fit=32, depth=8, num_blocks=2, deltas=(0.5, 1.0), num_draws=2)
LABELS = {"bn": "BN", "gn:4": "XBN_GN", "in": "XBN_IN"}
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def cells(settings: PerturbationSettings) -> list[Cell]:
    """Return one cell per network (the norm inserted, or "bn" for the plain one) and perturbed norm of a block."""
    return grid(settings.seeds, norm=settings.norms, position=settings.positions)


def load_network_and_data(settings: PerturbationSettings) -> tuple[CifarResNet, Tensor, tuple[Tensor, Tensor]]:
    """Return the plain network, images to fit the inserted norms with, and test images with labels."""
    num_fit, num_test = settings.num_fit, settings.num_test
    if settings.data == "digits":
        images, labels = digits()
        x = images.float() / 255
        return CifarResNet(settings.depth, in_channels=1), x[:num_fit], (x[-num_test:], labels[-num_test:])
    model = CifarResNet(settings.depth)
    model.load_state_dict(read_state_dict(fetch_cifar_weights(settings.depth)))
    (train_images, _), (test_images, labels) = cifar10("train"), cifar10("test")
    fit, test = ((images.float() / 255 - MEAN) / STD for images in (train_images[:num_fit], test_images[:num_test]))
    return model, fit, (test, labels[:num_test])


def measure(settings: PerturbationSettings, cell: Cell, _runs: Path) -> Measurement:
    """Convert the network and return its accuracy under each perturbation, per layer and per channel."""
    torch.manual_seed(cell["seed"])
    model, fit, (x, labels) = load_network_and_data(settings)
    model.eval()
    if cell["norm"] != "bn":
        xbn(model, cell["norm"], position=3 if cell["position"] == "first" else 2, fit=fit)
    blocks = find_blocks(model, find_norms(model))[: settings.num_blocks]
    index = ["first", "second"].index(cell["position"])
    layers = [block.norms[index].path for block in blocks]

    def accuracy(network: nn.Module) -> float:
        batches = zip(x.split(250), labels.split(250), strict=True)
        correct = [network(images).argmax(1) == targets for images, targets in batches]
        return 100 * float(torch.cat(correct).double().mean())

    curves: Measurement = {}
    for per in PER:
        report = perturbation_curve(model, accuracy, [0.0, *settings.deltas], layers, per=per, seeds=settings.num_draws)
        curves[per] = [{key: row[key] for key in ("delta", "score", "sd", "scores")} for row in report]
    return {"accuracy": curves[PER[0]][0]["score"], "layers": layers, **curves}


def accuracy_loss(per: str, **cell: Any) -> Values:
    """Return a function that computes the points of accuracy lost, averaged over all Δ, for each draw of noise."""

    def loss(rows: list[Row]) -> list[float]:
        (curve,) = select(rows, per, **cell)
        unperturbed = curve[0]["score"]
        scores_by_draw = zip(*(point["scores"] for point in curve[1:]), strict=True)
        return [unperturbed - statistics.fmean(scores) for scores in scores_by_draw]

    return loss


def claims(settings: PerturbationSettings) -> list[Claim]:
    """Return the order of the figure: BN loses most, XBN_GN less, XBN_IN least."""
    result = []
    for position in settings.positions:
        for per in PER:
            for more, less in pairwise(settings.norms):
                statement = f"{LABELS[more]} loses more accuracy than {LABELS[less]} (points; {position} norm, per {per})"
                losses = [accuracy_loss(per, norm=norm, position=position) for norm in (more, less)]
                result.append(Claim(statement, "Fig. 8: BN collapses first, XBN_GN later, XBN_IN last", *losses))
    return result


def plot(record: RecipeRecord[PerturbationSettings], path: Path) -> list[Path]:
    """Plot accuracy against Δ for each perturbed norm, per layer and per channel."""
    positions, norms = record.settings.positions, record.settings.norms
    fig = Figure(figsize=(11, 7.5), layout="constrained")
    axes = fig.subplots(len(positions), len(PER), sharey=True, squeeze=False)
    for axes_row, position in zip(axes, positions, strict=True):
        for ax, per in zip(axes_row, PER, strict=True):
            curves = {LABELS[norm]: select(record.rows, per, norm=norm, position=position)[0] for norm in norms}
            draw.curves(curves, ax)
            title = f"{position} norm of {record.settings.num_blocks} blocks, one δ per {per}"
            ax.set(ylabel="accuracy (%)", ylim=(0, 100), title=title)
    return save_figure(fig, path, dpi=110)


RECIPE = Recipe("xbn_perturbation", {"smoke": SMOKE, "desk": DESK}, cells, measure, claims, plot)
