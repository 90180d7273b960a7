"""xbn Fig. 8: how networks with and without XBNBlocks bear perturbed statistics (eq. 5).

    anynorm reproduce xbn_perturbation --preset desk --processes 2        (data: CIFAR-10, pretrained ResNet-56)

The paper trains ResNet-50 with BN, XBNBlock_GN and XBNBlock_IN on ImageNet and perturbs the first BN of the first six blocks.
`desk` scales that down: a ResNet-56 pretrained on CIFAR-10, and its XBN conversions, which are NOT trained: γ and β of the norms
put in are fitted to the pretrained network on 1024 training images (`xbn(fit=…)`). 2000 test images, five draws. So what is
claimed is the ordering for converted networks, not the paper's accuracies. GN has 4 groups: the first stage has 16 channels, and
the paper's 64 groups would be IN throughout.

Blocks have two norms. The first batch norm left in a block is its first (the second replaced, P3) or its second (the first
replaced, P1 = P2); each is compared with the plain network perturbed at the same place. One δ a layer, or one a channel: the
paper does not say, so both. Verdicts compare the five draws of noise on one network each: they say nothing about networks trained
anew.

`smoke` takes an untrained ResNet-8 and scikit-learn's digits: it shows that the parts work together, and claims nothing. `desk`
took 76 minutes on one core.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import plot, xbn
from anynorm.data.download import find_file
from anynorm.data.readers import cifar10, digits
from anynorm.diagnostics.perturb import PER, perturbation_curve
from anynorm.io.checkpoints import read_state_dict
from anynorm.models.cifar_resnet import CifarResNet
from anynorm.recipes.support.claims import Claim, pick
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import find_norms

DESK: Settings = {
    "data": "cifar10",
    "num_test": 2000,
    "fit": 1024,
    "depth": 56,
    "blocks": 6,
    "deltas": [0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0],
    "nets": ["bn", "gn:4", "in"],
    "places": ["first", "second"],
    "draws": 5,
    "seeds": 1,
}
SMOKE: Settings = DESK | {"data": "digits", "num_test": 64, "fit": 32, "depth": 8, "blocks": 2, "deltas": [0.5, 1.0], "draws": 2}
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def cells(settings: Settings) -> list[Row]:
    """List the networks, and the norm of a block that is perturbed."""
    return grid(settings["seeds"], net=settings["nets"], place=settings["places"])


def load(settings: Settings) -> tuple[CifarResNet, Tensor, tuple[Tensor, Tensor]]:
    """Give the plain network, images to fit on, and images and labels to score on."""
    if settings["data"] == "digits":
        images, labels = digits()
        x = images.float() / 255
        return (
            CifarResNet(settings["depth"], in_channels=1),
            x[: settings["fit"]],
            (x[-settings["num_test"] :], labels[-settings["num_test"] :]),
        )
    model = CifarResNet(settings["depth"])
    model.load_state_dict(read_state_dict(find_file(f"cifar10_resnet_pretrained/resnet{settings['depth']}-*.th")))
    (train, _), (test, labels) = cifar10("train"), cifar10("test")
    x, y = ((images.float() / 255 - MEAN) / STD for images in (train[: settings["fit"]], test[: settings["num_test"]]))
    return model, x, (y, labels[: settings["num_test"]])


def measure(settings: Settings, cell: Row) -> Row:
    """Convert the network, and give its accuracy under each perturbation."""
    torch.manual_seed(cell["seed"])
    model, fit, (x, labels) = load(settings)
    model.eval()
    if cell["net"] != "bn":
        xbn(model, cell["net"], position=3 if cell["place"] == "first" else 2, fit=fit)
    sites = find_norms(model)
    blocks = find_blocks(model, sites)[: settings["blocks"]]
    index = ["first", "second"].index(cell["place"])
    layers = [block.norms[index].path for block in blocks]

    def accuracy(net: nn.Module) -> float:
        right = [net(some).argmax(1) == truth for some, truth in zip(x.split(250), labels.split(250), strict=True)]
        return 100 * float(torch.cat(right).double().mean())

    curves: Row = {}
    for per in PER:
        report = perturbation_curve(model, accuracy, [0.0, *settings["deltas"]], layers, per=per, seeds=settings["draws"])
        curves[per] = [{key: row[key] for key in ("delta", "score", "sd", "scores")} for row in report]
    return {"accuracy": curves[PER[0]][0]["score"], "layers": layers, **curves}


def lost(rows: list[Row], per: str, **cell: Any) -> list[float]:
    """Give the points of accuracy lost, the mean over all Δ, for each draw."""
    (curve,) = pick(rows, per, **cell)
    plain = curve[0]["score"]
    return [plain - statistics.fmean(draw) for draw in zip(*(row["scores"] for row in curve[1:]), strict=True)]


def claims(settings: Settings) -> list[Claim]:
    """List the ordering: BN loses most, XBN_GN less, XBN_IN least."""
    names = {"bn": "BN", "gn:4": "XBN_GN", "in": "XBN_IN"}
    found = []
    for place in settings["places"]:
        for per in PER:
            for more, less in zip(settings["nets"], settings["nets"][1:], strict=False):
                found.append(
                    Claim(
                        f"{names[more]} loses more accuracy than {names[less]} (points; {place} norm, per {per})",
                        "Fig. 8: BN collapses first, XBN_GN later, XBN_IN last",
                        lambda rows, per=per, net=more, place=place: lost(rows, per, net=net, place=place),  # type: ignore[misc]
                        lambda rows, per=per, net=less, place=place: lost(rows, per, net=net, place=place),  # type: ignore[misc]
                    )
                )
    return found


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracy against Δ, for each place and kind of noise."""
    from matplotlib.figure import Figure

    places, nets = record.settings["places"], record.settings["nets"]
    fig = Figure(figsize=(11, 7.5), layout="constrained")
    axes = fig.subplots(len(places), len(PER), sharey=True, squeeze=False)
    for line, place in zip(axes, places, strict=True):
        for ax, per in zip(line, PER, strict=True):
            models = {}
            for net in nets:
                label = "BN" if net == "bn" else f"XBN, {net}"
                models[label] = pick(record.rows, per, net=net, place=place)[0]
            plot.curves(models, ax)
            ax.set(ylabel="accuracy (%)", ylim=(0, 100), title=f"{place} norm of {record.settings['blocks']} blocks, per {per}")
    picture = path.with_name(path.name + ".png")
    fig.savefig(picture, dpi=110)
    return [picture]


RECIPE = Recipe("xbn_perturbation", {"smoke": SMOKE, "desk": DESK}, cells, measure, claims, draw)
