"""bgn Table 7 (choice of G): groups of BGN, by the background of the source domain.

    anynorm reproduce bgn_background --preset night

Paper: G is 512 for most tasks of Office-31, but 1 and 8 if the source is Amazon, because its backgrounds "are totally white and
may result in noisy statistics when the group size is small". The paper has no numbers on it.

    smoke  digits and faded digits, a few steps; checks that the code works and claims nothing
    night  MNIST (black background) to MNIST-M (patches of photographs) and back, 16 × 16 pixels, with the training of
           `bgn_adaptation`; 512 to 1 groups. Numbers are subject to a pilot until a record exists
    paper  Amazon to DSLR and back, with the published training; needs office31/

A group of a position that is background in all images has a constant input: its statistics are those of rounding and of the few
images that are different. The claims compare many groups with one, for each source.

Controls: accuracy on the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.bgn.adaptation.recipe import measure_pair
from anynorm.lab.recipes.bgn.adaptation.settings import NIGHT, PAPER, SMOKE, AdaptationSettings, DomainPair, Method
from anynorm.lab.recipes.support.claims import Check, Claim, Larger, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.quantities import accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

UNIFORM, NATURAL = "uniform", "natural"
"""Backgrounds of the source."""
SOURCE = Source(
    "bgn",
    "text on Table 7: G by task",
    "the source domain Amazon's backgrounds are totally white and may result in noisy statistics when the group size is small",
)


@dataclass(frozen=True, kw_only=True)
class BackgroundSettings(TrainingSettings):
    """Settings of a grid of backgrounds × numbers of groups.

    Args:
        pairs: pairs of domains by the background of the source.
        num_groups: numbers of groups of BGN, the largest first.
        mean_of_last: number of last evaluations over which the mean of the accuracy on the target is taken.
        min_train_accuracy: accuracy in % on the source that every network in a claim must reach.
    """

    pairs: Mapping[str, DomainPair]
    num_groups: tuple[int, ...]
    mean_of_last: int = 5
    min_train_accuracy: float = 90.0

    @property
    def num_validation(self) -> int:
        """0: runs with pilot seeds are tested on held-out images of the target, not of the source."""
        return 0


PRESETS = {
    "smoke": BackgroundSettings(
        seeds=2,
        training=Training(SMOKE, base_batch_size=32),
        pairs={UNIFORM: DomainPair("digits", "digits-faded"), NATURAL: DomainPair("digits-faded", "digits")},
        num_groups=(32, 1),
        mean_of_last=1,
    ),
    "night": BackgroundSettings(
        seeds=10,
        training=Training(NIGHT, base_batch_size=32),
        pairs={UNIFORM: DomainPair("mnist@16", "mnist-m@16"), NATURAL: DomainPair("mnist-m@16", "mnist@16")},
        num_groups=(512, 32, 8, 1),
        min_train_accuracy=80.0,
    ),
    "paper": BackgroundSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=30),
        pairs={
            UNIFORM: DomainPair("office31/amazon", "office31/dslr"),
            NATURAL: DomainPair("office31/dslr", "office31/amazon"),
        },
        num_groups=(512, 32, 8, 1),
        mean_of_last=1,
    ),
}


def cells(settings: BackgroundSettings) -> list[Cell]:
    """Return one cell per background, number of groups and seed."""
    return grid(settings.seeds, background=settings.pairs, num_groups=settings.num_groups)


def measure(settings: BackgroundSettings, cell: Cell, runs: Path) -> Measurement:
    """Train on the source and adapt to the target; return accuracies on the target before and after."""
    method = Method("can", f"bgn:{cell['num_groups']}.aux@2")
    adaptation = AdaptationSettings(
        seeds=settings.seeds, training=settings.training, norms={"bgn": method}, mean_of_last=settings.mean_of_last
    )
    pair = replace(settings.pairs[cell["background"]], bgn=None)
    return measure_pair(adaptation, {"norm": "bgn", "seed": cell["seed"]}, runs, pair)


def controls(settings: BackgroundSettings) -> list[Control]:
    """Return that every network has learned on the source."""
    return [Learned(settings.min_train_accuracy, name="accuracy on the source (%)")]


def claims(settings: BackgroundSettings) -> list[Claim | Check]:
    """Return that one group is better than many with a uniform background, and many better than one with a natural one."""
    most, fewest = settings.num_groups[0], settings.num_groups[-1]
    return [
        Larger(
            statement=f"bgn:{better} is more accurate than bgn:{worse} if the source has {background} backgrounds",
            source=SOURCE,
            larger=accuracy_of(background=background, num_groups=better),
            smaller=accuracy_of(background=background, num_groups=worse),
        )
        for background, better, worse in ((UNIFORM, fewest, most), (NATURAL, most, fewest))
    ]


def tables(record: RecipeRecord[BackgroundSettings]) -> list[Table]:
    """Return the accuracy by background and number of groups."""
    groups = {f"G = {number}": number for number in record.settings.num_groups}
    rows = accuracy_rows(record.rows, "background", record.settings.pairs, "num_groups", groups)
    return [result_table(rows, "Accuracy on the target in % after adaptation, mean ± sd over seeds.")]


def plot(record: RecipeRecord[BackgroundSettings], path: Path) -> list[Path]:
    """Plot the accuracy against the number of groups."""
    lines = {
        f"{background} background of the source": {
            number: successful(record.rows, background=background, num_groups=number) for number in record.settings.num_groups
        }
        for background in record.settings.pairs
    }
    fig, _ = draw.lines(lines, xlabel="number of groups", ylabel="accuracy on the target (%)", title="bgn: G by task")
    return save_figure(fig, path)


RECIPE = Recipe("bgn_background", PRESETS, cells, measure, claims, plot, tables, controls=controls)
