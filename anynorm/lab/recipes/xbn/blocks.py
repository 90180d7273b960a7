"""xbn Table 1 and Fig. 7: position and number of batch-free norms in a network.

    anynorm reproduce xbn_blocks --preset desk

Paper: ResNet-50 on ImageNet, batch size 256, 100 epochs. One norm of a bottleneck block is replaced: by GN with 64 groups in
position 1, 2 or 3 of every block (P1, P2, P3), or by GN or IN in position 2 of every n-th block (Dn). GN and IN are also
compared as the only norm of the network.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   7500 images of CIFAR-10 at 16 × 16 pixels, ResNet-26, 3 epochs at batch 32 (`support.presets.BOTTLENECK`)
    night  10 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-29, 15 epochs at batch 64 (`xbn.trained.NIGHT`)
    paper  the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

`desk` is a demonstration; it decides nothing unless its controls hold. Its networks reach 25 to 44 %, the norm of the stem is BN,
IN has an affine, the schedule is a cosine, and the last maps have 2 × 2 pixels. `night` has the authors' layouts: the batch-free
norm in the stem of every XBN network too, IN without affine, GN alone with half as many groups as in the blocks; further, group
whitening (sec. 5.2.2; there in ResNet-101), two batch-free norms per block (footnote 2), the accuracy with batch statistics and
the estimation shift of each trained network. Its numbers are subject to the pilot until a record exists. Scaled down in `night`:
9 blocks, 16 groups, so Dn are 4, 2 and 1 blocks (paper: 8, 4, 2 of 16).

Two other recipes train networks of this one in the same way: `xbn_strategies` (strategy COS in `desk` and `night`) and
`xbn_networks` (ResNet-50 in `paper`). The claims about them are made here only.

The authors initialize convolutions by N(0, 2 / (k² · outputs)), as `paper` does; the others have torch's initialization.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import OURS, UNITS, Claim, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import BOTTLENECK, IMAGENET_XBN, tiny
from anynorm.lab.recipes.support.quantities import Linear, Measured, accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.recipes.xbn.trained import NIGHT, measure_trained
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.table import Table

TABLE_1, FIG_7, TEXT = Source("xbn", "Table 1"), Source("xbn", "Fig. 7"), Source("xbn", "sec. 5.2.1")
P2_AND_BN, IN_AND_BN = "xbn_blocks, P2 and BN", "xbn_blocks, IN-D1 and BN"
"""Groups of claims about the same two networks."""


@dataclass(frozen=True, kw_only=True)
class BlockSettings(TrainingSettings):
    """Settings of networks with batch-free norms in some blocks.

    Args:
        gn: the spec of GN in blocks.
        every: distances n of the blocks with a batch-free norm (Dn), 1 first.
        gn_alone: the spec of GN as the only norm of the network; "" for `gn`.
        instance: the spec of IN in blocks.
        whitening: the spec of group whitening in blocks; "" for none.
        pairs: pairs of positions that both have GN, such as "12".
        stem: whether the norm of the stem is replaced too, as in the authors' networks.
        min_train_accuracy: training accuracy in % from which a network counts as trained.
        measure_shift: whether to measure the accuracy with batch statistics and the estimation shift of trained networks.
    """

    gn: str
    every: tuple[int, ...]
    gn_alone: str = ""
    instance: str = "in"
    whitening: str = ""
    pairs: tuple[str, ...] = ()
    stem: bool = False
    min_train_accuracy: float = 25.0
    measure_shift: bool = False

    def xbn(self, norm: str, modifiers: str = "") -> str:
        """Return the layout of XBN blocks, such as "xbn.p1=gn:64"; `modifiers` are positions and distance."""
        return f"xbn{modifiers}{'.stem' if self.stem else ''}={norm}"


PRESETS = {
    "smoke": BlockSettings(
        seeds=2,
        training=Training(replace(tiny(BOTTLENECK.config), batch_size=16), base_batch_size=32),
        gn="gn:16",
        every=(1, 2),
        pairs=("12",),
        stem=True,
        min_train_accuracy=0.0,
        measure_shift=True,
    ),
    "desk": BlockSettings(
        seeds=3,
        training=replace(BOTTLENECK, config=replace(BOTTLENECK.config, batch_size=32)),
        gn="gn:16",
        every=(1, 2, 4, 8),
    ),
    "night": BlockSettings(
        seeds=8,
        training=NIGHT,
        gn="gn:16",
        every=(1, 2, 4, 8),
        gn_alone="gn:8",
        instance="in.none",
        whitening="gw:16",
        pairs=("12",),
        stem=True,
        min_train_accuracy=60.0,
        measure_shift=True,
    ),
    "paper": BlockSettings(
        seeds=3,
        training=IMAGENET_XBN,
        gn="gn:64",
        every=(1, 2, 4, 8),
        gn_alone="gn:32",
        instance="in.none",
        whitening="gw:64",
        pairs=("12", "13", "23"),
        stem=True,
        min_train_accuracy=60.0,
        measure_shift=True,
    ),
}


def norms(settings: BlockSettings) -> dict[str, str]:
    """Return the norms of each network as `Config.norm` has them, by the paper's label."""
    gn, instance = settings.gn, settings.instance
    result = {"BN": "bn", "GN": settings.gn_alone or gn, "IN": instance}
    result |= {f"P{position}": settings.xbn(gn, f".p{position}") for position in (1, 2, 3)}
    result |= {f"GN-D{every}": settings.xbn(gn, f".d{every}") for every in settings.every if every > 1}
    result |= {f"IN-D{every}": settings.xbn(instance, "" if every == 1 else f".d{every}") for every in settings.every}
    result |= {"GW": settings.xbn(settings.whitening)} if settings.whitening else {}
    return result | {_pair_label(pair): settings.xbn(gn, f".p{pair[0]}.p{pair[1]}") for pair in settings.pairs}


def _pair_label(pair: str) -> str:
    return f"P{pair[0]}+P{pair[1]}"


def is_trained_here(training: Training) -> bool:
    """Whether a preset of this recipe trains its networks in the same way: what BN, GN and P2 claim is then claimed here only."""
    return any(training == settings.training for settings in PRESETS.values())


def cells(settings: BlockSettings) -> list[Cell]:
    """Return one cell per network and seed."""
    return grid(settings.seeds, network=norms(settings))


def measure(settings: BlockSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy."""
    config = replace(settings.training.config, norm=norms(settings)[cell["network"]], seed=cell["seed"])
    return (measure_trained if settings.measure_shift else train_cell)(config, settings.training, runs)


def controls(settings: BlockSettings) -> list[Control]:
    """Return the control that networks have learned."""
    return [Learned(settings.min_train_accuracy)]


def claims(settings: BlockSettings) -> list[Claim]:
    """Return the orders of the table and the figure, and what the text says about the networks."""
    every = settings.every[1:]
    text = TABLE_1._replace(quote="the text has 75.63 for GN")
    result = [
        _more_accurate("P1", "BN", TABLE_1, (77.08, 76.29)),
        _more_accurate("P2", "BN", TABLE_1, (77.40, 76.29), group=P2_AND_BN),
        _more_accurate("P3", "BN", TABLE_1, (76.76, 76.29)),
        _more_accurate("P2", "P1", TABLE_1, (77.40, 77.08)),
        _more_accurate("P2", "P3", TABLE_1, (77.40, 76.76)),
        _more_accurate("P2", "GN", text, (77.40, 75.73)),
        _more_accurate("BN", "GN", text, (76.29, 75.73)),
    ]
    better, fewer = (FIG_7._replace(quote=quote) for quote in ("all are better than the baseline", "fewer XBNBlocks are worse"))
    result += [_more_accurate(f"GN-D{n}", "BN", better, (77.39, 76.29) if n == 2 else None) for n in every]
    pairs = pairwise(["P2", *(f"GN-D{n}" for n in every)])
    result += [_more_accurate(more, less, fewer, group="xbn Fig. 7, fewer XBNBlocks are worse") for more, less in pairs]
    if 4 in every:
        result.append(_more_accurate("IN-D4", "BN", FIG_7, (77.19, 76.29)))
        result.append(_more_accurate("IN-D4", "IN-D1", FIG_7, (77.19, 74.99)))
    result.append(_more_accurate("BN", "IN-D1", FIG_7, (76.29, 74.99), group=IN_AND_BN))
    for pair in settings.pairs:
        source = Source("xbn", "footnote 2", "replacing two BNs usually has worse performance")
        result.append(_more_accurate("P2", _pair_label(pair), source, group="xbn footnote 2, two batch-free norms per block"))
    if settings.whitening:
        result.append(_more_accurate("GW", "BN", Source("xbn", "sec. 5.2.2", "in ResNet-101"), (79.18, 77.65)))
    return result + (_claims_about_shift() if settings.measure_shift else [])


def _claims_about_shift() -> list[Claim]:
    """Return the claims about training accuracy and about the cause of the difference of BN and XBN."""
    bn, p2, instance = ({"network": network} for network in ("BN", "P2", "IN-D1"))
    return [
        Larger(
            statement="the training accuracy of BN is higher than that of IN-D1",
            source=TEXT,
            published=Published(80.29, 77.93),
            larger=Measured("train_accuracy", bn),
            smaller=Measured("train_accuracy", instance),
            group=IN_AND_BN,
        ),
        Larger(
            statement="BN gains more accuracy than P2 if batch statistics replace the running statistics (points)",
            source=OURS,
            larger=gain_of_batch_statistics("BN"),
            smaller=gain_of_batch_statistics("P2"),
            group=P2_AND_BN,
        ),
        Larger(
            statement="the estimation shift of batch norms (sd, mean over layers) is larger in BN than in P2",
            source=OURS,
            scale=UNITS,
            larger=Measured(mean_shift, bn),
            smaller=Measured(mean_shift, p2),
            group=P2_AND_BN,
        ),
    ]


def gain_of_batch_statistics(network: str) -> Linear:
    """Return the accuracy with batch statistics − that with running statistics, in points."""
    return Measured("batch_accuracy", {"network": network}) - accuracy_of(network=network)


def mean_shift(row: Row) -> float | None:
    """Return the mean estimation shift of the batch norms of a network; None if the run failed or it has no batch norm."""
    shifts = row.get("shift")
    return sum(shifts) / len(shifts) if shifts else None


def _more_accurate(
    network: str, other: str, source: Source, published: tuple[float, float] | None = None, group: str = ""
) -> Larger:
    return Larger(
        statement=f"{network} is more accurate than {other}",
        source=source,
        published=None if published is None else Published(*published),
        larger=accuracy_of(network=network),
        smaller=accuracy_of(network=other),
        group=group,
    )


def tables(record: RecipeRecord[BlockSettings]) -> list[Table]:
    """Return the accuracies of each network, and the estimation shift if it was measured."""
    rows: list[Row] = []
    for label, norm in norms(record.settings).items():
        columns = {"accuracy": "accuracy", "training accuracy": "train_accuracy"}
        if record.settings.measure_shift:
            columns |= {"with batch statistics": "batch_accuracy"}
        results = {title: result_over_seeds(record.rows, column, network=label) for title, column in columns.items()}
        rows.append({"network": label, "norms": norm, **results})
    return [result_table(rows, "Accuracy in %, mean ± sd over seeds. P2 is also GN-D1.")]


def plot(record: RecipeRecord[BlockSettings], path: Path) -> list[Path]:
    """Plot the accuracy of each network."""
    points = {"test accuracy": {label: successful(record.rows, network=label) for label in norms(record.settings)}}
    fig, ax = draw.lines(points, ylabel="test accuracy (%)", title="xbn Table 1 (P1 to P3) and Fig. 7")
    ax.get_legend().remove()
    ax.get_lines()[0].set_linestyle("none")
    ax.tick_params(axis="x", rotation=45)
    return save_figure(fig, path)


RECIPE = Recipe("xbn_blocks", PRESETS, cells, measure, claims, plot, tables, controls)
