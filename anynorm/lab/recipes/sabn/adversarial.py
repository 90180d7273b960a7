"""sabn Table 3, Table 4 and Fig. 6: accuracies and test losses of AdvProp with four norms.

    anynorm reproduce sabn_adversarial --preset night

Paper: CIFAR-10, ResNet-18 trained on clean and adversarial images (eq. 7), each through a branch of the norms; PGD with 10 steps
of 2/255 and ε = 8/255. Table 3 has the clean branch, Table 4 the adversarial branch under PGD-10 and PGD-20, Fig. 6 the test
losses of both branches. From public code: PreAct-ResNet-18, SGD with learning rate 0.1, divided by 10 after epochs 50 and 150 of
200, 200 steps of warm-up, batch size 128, 45 000 training images, crops and flips, the mean of the two losses of eq. 7.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   9600 images of CIFAR-10 at 16 × 16 pixels, PreAct-ResNet-8, 2 epochs of 150 steps, PGD-3 in training; 300 test images
           are attacked; a demonstration, which decides nothing unless its controls hold
    night  20 000 images at 16 × 16 pixels, PreAct-ResNet-8, 8 epochs of 312 steps, PGD-3 in training, 2000 attacked images;
           subject to a pilot until its record exists
    paper  the published setting

Controls: every network has learned. The paper's large effect is AuxBN against BN on clean images (9.6 points): without a part of
it there is nothing between the branches that a sandwich could improve, so SaAuxBN against AuxBN is not tested.

Scaled down in `desk` and `night`: images, network, epochs and the training attack. `desk` has the sum of the losses, so gradients
are twice those of the public code at the same learning rate; `night` and `paper` have their mean. Where this recipe differs from
the public code in all presets: attacks leave running statistics alone and run in eval mode (there: train mode, so that each pass
of an attack updates the running statistics of the adversarial branch); 10 training steps of PGD in `paper` as in the text (there:
7); a norm and a ReLU before the pooling (there: none); warm-up from 0 (there: from 0.01); the last epoch. ModeNorm is not in the
public code.

Further rows repeat AuxBN and, except in `desk`, SaAuxBN with train-mode attacks in training. Every network is attacked with norms
in eval and in train mode, and classifies in eval mode. Claims about these modes are ours.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.adversarial import (
    AdversarialSettings,
    AttackedAccuracy,
    cells,
    eval_mode_is_stronger,
    higher,
    measure,
    plot,
    train_mode_label,
    trained_norms,
)
from anynorm.lab.recipes.support.claims import OURS, RATIO, Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.presets import tiny
from anynorm.lab.recipes.support.quantities import Measured, accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_table, save_figure, select
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.adversarial.options import AdvPropOptions
from anynorm.lab.tasks.classification.robustness import RobustMetric
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step
from anynorm.table import Table

BN, MODE_NORM, AUX_BN, SA_AUX_BN = NORMS = ("bn", "modenorm:2", "auxbn@2", "saauxbn@2")
OPTIONS = AdvPropOptions(train_attack="pgd:3", attack=("pgd:10", "pgd:20"), num_attacked=300)
CONFIG = Config(
    task="advprop", data="cifar10@16", model="preact_resnet8", num_train=9600, num_test=2000, crop=2, flip=True, epochs=2,
    lr=0.1, weight_decay=5e-4, schedule="cosine", num_evals=1, batch_size=64, options=OPTIONS,
)  # fmt: skip
SMOKE = replace(
    tiny(CONFIG), width=0.5, crop=0, batch_size=32,
    options=replace(OPTIONS, attack=("pgd:2", "pgd:3"), loss_attack="pgd:2", num_attacked=20),
)  # fmt: skip
NIGHT = replace(
    CONFIG, num_train=20_000, num_test=None, epochs=8, num_evals=10,
    options=replace(OPTIONS, num_attacked=2000, loss_weight=0.5, loss_attack="pgd:10"),
)  # fmt: skip
PAPER = replace(
    CONFIG, data="cifar10", model="preact_resnet18", num_train=45_000, num_test=None, crop=4, epochs=200,
    schedule=Step((0.25, 0.75)), warmup_epochs=200 / (45_000 // 128), batch_size=128, num_evals=20,
    options=replace(OPTIONS, train_attack="pgd:10", num_attacked=10_000, loss_weight=0.5, loss_attack="pgd:10"),
)  # fmt: skip
BOTH_MODES = trained_norms(*NORMS, train_mode=(AUX_BN, SA_AUX_BN))
"""All norms; AuxBN and SaAuxBN also as in the public code, with train-mode attacks in training."""
PRESETS = {
    "smoke": AdversarialSettings(seeds=2, training=Training(SMOKE, base_batch_size=32), norms=BOTH_MODES, min_train_accuracy=0.0),
    "desk": AdversarialSettings(
        seeds=3, training=Training(CONFIG, base_batch_size=64), norms=trained_norms(*NORMS, train_mode=(AUX_BN,))
    ),
    "night": AdversarialSettings(
        seeds=6, training=Training(NIGHT, base_batch_size=64), norms=BOTH_MODES, min_train_accuracy=50.0
    ),
    "paper": AdversarialSettings(
        seeds=3, training=Training(PAPER, base_batch_size=128), norms=BOTH_MODES, min_train_accuracy=80.0
    ),
}
BRANCH = "_adversarial_branch"
TABLE_3 = {BN: 84.84, MODE_NORM: 83.28, AUX_BN: 94.47, SA_AUX_BN: 94.62}
TABLE_4 = {
    "clean": {BN: 84.84, MODE_NORM: 83.28, AUX_BN: 83.42, SA_AUX_BN: 84.08},
    "PGD-10": {BN: 41.57, MODE_NORM: 43.56, AUX_BN: 43.05, SA_AUX_BN: 44.93},
    "PGD-20": {BN: 40.02, MODE_NORM: 41.85, AUX_BN: 41.60, SA_AUX_BN: 43.14},
}
BRANCHES_MATTER = "auxbn@2 minus bn, clean accuracy (points)"
ON_PAR = 1.0
"""δ of "on par", in points; the paper's difference is 0.76."""


def controls(settings: AdversarialSettings) -> list[Control]:
    """Return that every network has learned, and that branches matter: a quarter of the paper's 9.6 points."""
    effect = Requirement(BRANCHES_MATTER, accuracy_of(norm=AUX_BN) - accuracy_of(norm=BN), (TABLE_3[AUX_BN] - TABLE_3[BN]) / 4)
    result: list[Control] = [Learned(settings.min_train_accuracy), effect]
    if settings.has_losses:
        column, name = "train_adversarial_accuracy", "training accuracy on adversarial images (%)"
        result.append(Learned(min(settings.min_train_accuracy, 25.0), column, name))
    return result


def claims(settings: AdversarialSettings) -> list[Claim]:
    """Return the orders of Tables 3 and 4 and of Fig. 6, and what the mode of norms during the attack changes."""
    first, last = (RobustMetric(attack, branch=BRANCH) for attack in settings.attacks)
    clean, adversarial = "clean accuracy (clean branch)", "clean accuracy (adversarial branch)"
    result: list[Claim] = [
        _order("accuracy", pair, clean, "Table 3", TABLE_3)
        for pair in ((SA_AUX_BN, AUX_BN), (AUX_BN, BN), (SA_AUX_BN, BN), (AUX_BN, MODE_NORM), (BN, MODE_NORM))
    ]
    result += [
        _order(f"accuracy{BRANCH}", pair, adversarial, "Table 4", TABLE_4["clean"])
        for pair in ((BN, SA_AUX_BN), (SA_AUX_BN, AUX_BN), (BN, AUX_BN), (BN, MODE_NORM))
    ]
    result.append(
        Equivalent(
            statement=f"the {adversarial} of `{SA_AUX_BN}` is on par with that of `{BN}`",
            source=Source("sabn", "sec. 5.1, SA on par", "SaAuxBN is on par with the vanilla BN in terms of SA"),
            published=Published(TABLE_4["clean"][SA_AUX_BN], TABLE_4["clean"][BN]),
            first=AttackedAccuracy(f"accuracy{BRANCH}", {"norm": SA_AUX_BN}),
            second=AttackedAccuracy(f"accuracy{BRANCH}", {"norm": BN}),
            delta=ON_PAR,
        )
    )
    num_attacked = settings.options.num_attacked
    for metric, name in ((first, "PGD-10"), (last, "PGD-20")):
        pairs = ((SA_AUX_BN, AUX_BN), (AUX_BN, BN), (SA_AUX_BN, BN), (SA_AUX_BN, MODE_NORM), (MODE_NORM, BN))
        result += [
            _order(metric.accuracy, pair, f"robust accuracy ({metric.attack})", "Table 4", TABLE_4[name], num_attacked)
            for pair in pairs
        ]
    if settings.has_losses:
        result += [
            _lower_loss(column, branch) for column, branch in (("clean_loss", "clean"), ("adversarial_loss", "adversarial"))
        ]
    robust = f"robust accuracy ({last.attack})"
    result += [eval_mode_is_stronger(norm, last, robust) for norm in NORMS]
    for norm in (AUX_BN, SA_AUX_BN):
        if train_mode_label(norm) in settings.norms:
            pair = (norm, train_mode_label(norm))
            result.append(higher("accuracy", pair, clean, OURS))
            result.append(higher(last.accuracy, pair, robust, OURS, num_attacked=num_attacked))
    if train_mode_label(SA_AUX_BN) in settings.norms:
        pair, requires = (train_mode_label(SA_AUX_BN), train_mode_label(AUX_BN)), (BRANCHES_MATTER,)
        result.append(higher("accuracy", pair, clean, OURS, requires=requires))
        result.append(higher(last.accuracy, pair, robust, OURS, requires=requires, num_attacked=num_attacked))
    return result


def _order(
    column: str,
    norms: tuple[str, str],
    quantity: str,
    place: str,
    accuracies: dict[str, float],
    num_attacked: int | None = None,
) -> Larger:
    """Return an order of a table. PGD-10 and PGD-20 attack the same networks; BN and ModeNorm have one branch for both tables."""
    norm, other = norms
    kind = "robust" if column.startswith("robust") else column
    if set(norms) == {BN, MODE_NORM} and kind != "robust":
        kind = "clean"
    return higher(
        column,
        norms,
        quantity,
        Source("sabn", place),
        Published(accuracies[norm], accuracies[other]),
        group=f"{norm} > {other}, {kind}",
        requires=(BRANCHES_MATTER,) if set(norms) == {SA_AUX_BN, AUX_BN} else (),
        num_attacked=num_attacked,
    )


def _lower_loss(column: str, branch: str) -> Larger:
    """Return an order of Fig. 6."""
    return Larger(
        statement=f"the {branch} loss on test images of `{AUX_BN}` is larger than that of `{SA_AUX_BN}`",
        source=Source("sabn", "Fig. 6", "the latter achieves lower value on both"),
        larger=Measured(column, {"norm": AUX_BN}),
        smaller=Measured(column, {"norm": SA_AUX_BN}),
        scale=RATIO,
        requires=(BRANCHES_MATTER,),
    )


def tables(record: RecipeRecord[AdversarialSettings]) -> list[Table]:
    """Return the accuracies of both branches by norm."""
    result = []
    for branch, title in (("", "clean"), (BRANCH, "adversarial")):
        columns = {"clean images": f"accuracy{branch}"}
        for attack in record.settings.attacks:
            columns[f"{attack}, eval-mode attack"] = RobustMetric(attack, "eval", branch).accuracy
            columns[f"{attack}, train-mode attack"] = RobustMetric(attack, "train", branch).accuracy
        columns["training, clean branch"] = "train_accuracy"
        finding = (
            f"Test accuracy in % of the {title} branch, mean ± sd over seeds: on clean images, and on images attacked with norms "
            "in eval and in train mode (the network classifies in eval mode); and training accuracy of the clean branch."
        )
        result.append(result_table(metric_rows(record.rows, "norm", record.settings.norms, columns), finding))
    return result


def panels(settings: AdversarialSettings) -> dict[str, dict[str, str]]:
    """Return the panels of the picture: one per branch, under the longest attack."""
    attack = settings.attacks[-1]
    return {
        f"{title} branch, attacked by {attack}": {
            "clean images": f"accuracy{branch}",
            "eval-mode attack": RobustMetric(attack, "eval", branch).accuracy,
            "train-mode attack": RobustMetric(attack, "train", branch).accuracy,
        }
        for branch, title in (("", "clean"), (BRANCH, "adversarial"))
    }


def draw_losses(record: RecipeRecord[AdversarialSettings], path: Path) -> list[Path]:
    """Plot the test losses of both branches against steps, AuxBN and SaAuxBN (Fig. 6); nothing if the record has none."""
    if not record.settings.has_losses:
        return []
    fig = Figure(figsize=(9, 3.4), layout="constrained")
    panels = {"clean_loss": "clean loss, clean branch", "adversarial_loss": "adversarial loss, adversarial branch"}
    for ax, (column, title) in zip(fig.subplots(1, 2), panels.items(), strict=True):
        series: dict[str, dict[int, list[float]]] = {}
        for norm in (AUX_BN, SA_AUX_BN):
            points = series.setdefault(norm, {})
            for curves in select(record.rows, "loss_curves", norm=norm):
                for step, value in zip(curves["step"], curves[column], strict=True):
                    points.setdefault(step, []).append(value)
        draw.lines(series, ax, xlabel="step", ylabel="cross entropy, test images", title=title)
        ax.legend(frameon=False)
    return save_figure(fig, path.with_name(f"{path.name}.losses"))


def plot_all(record: RecipeRecord[AdversarialSettings], path: Path) -> list[Path]:
    """Plot the accuracies by norm, and the test losses."""
    return plot(record, path, panels=panels) + draw_losses(record, path)


RECIPE = Recipe("sabn_adversarial", PRESETS, cells, measure, claims, plot_all, tables, controls)
