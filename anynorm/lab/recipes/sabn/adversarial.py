"""sabn Table 3 and Table 4: clean and robust accuracy of AdvProp with four norms.

    anynorm reproduce sabn_adversarial --preset desk

Paper: CIFAR-10, ResNet-18 trained on clean and adversarial images (eq. 7), each through a branch of the norms; PGD with 10 steps
of 2/255 and ε = 8/255. Table 3 has the clean branch, Table 4 the adversarial branch under PGD-10 and PGD-20. From public code:
PreAct-ResNet-18, SGD with learning rate 0.1, divided by 10 after epochs 50 and 150 of 200, 200 steps of warm-up, batch size 128,
45 000 training images, crops and flips.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   9600 images of CIFAR-10 at 16 × 16 pixels, PreAct-ResNet-8, 2 epochs of 150 steps, PGD-3 in training; 300
           test images are attacked
    paper  the published setting

Scaled down in `desk`: images, network, epochs and the training attack, so the claims are about the order of the norms early in
training. Where this recipe differs from the public code in both presets: attacks leave running statistics alone and run in eval
mode (there: train mode, so that each pass of an attack updates the running statistics of the adversarial branch); 10 training
steps of PGD as in the text (there: 7); the sum of the two losses as in eq. 7 (there: their mean); a norm and a ReLU before the
pooling (there: none); warm-up from 0 (there: from 0.01); the last epoch. ModeNorm is not in the public code.

One row repeats AuxBN with train-mode attacks in training. Every network is attacked with norms in eval and in train mode, and
classifies in eval mode. Claims about these modes are ours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from anynorm.lab.recipes.support.adversarial import (
    AdversarialSettings,
    cells,
    eval_mode_is_stronger,
    higher,
    measure,
    plot,
    train_mode_label,
    trained_norms,
)
from anynorm.lab.recipes.support.claims import NOT_IN_PAPER, Claim
from anynorm.lab.recipes.support.presets import tiny
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_table
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
    tiny(CONFIG), width=0.5, crop=0, batch_size=32, options=replace(OPTIONS, attack=("pgd:2", "pgd:3"), num_attacked=20)
)
PAPER = replace(
    CONFIG, data="cifar10", model="preact_resnet18", num_train=45_000, num_test=None, crop=4, epochs=200,
    schedule=Step((0.25, 0.75)), warmup_epochs=200 / (45_000 // 128), batch_size=128,
    options=replace(OPTIONS, train_attack="pgd:10", num_attacked=10_000),
)  # fmt: skip
TRAINED_NORMS = trained_norms(*NORMS, train_mode=(AUX_BN,))
PRESETS = {
    "smoke": AdversarialSettings(seeds=2, training=Training(SMOKE, base_batch_size=32), norms=TRAINED_NORMS),
    "desk": AdversarialSettings(seeds=3, training=Training(CONFIG, base_batch_size=64), norms=TRAINED_NORMS),
    "paper": AdversarialSettings(seeds=3, training=Training(PAPER, base_batch_size=128), norms=TRAINED_NORMS),
}
BRANCH = "_adversarial_branch"
TABLE_3 = {BN: 84.84, MODE_NORM: 83.28, AUX_BN: 94.47, SA_AUX_BN: 94.62}
TABLE_4 = {
    "clean": {BN: 84.84, MODE_NORM: 83.28, AUX_BN: 83.42, SA_AUX_BN: 84.08},
    "PGD-10": {BN: 41.57, MODE_NORM: 43.56, AUX_BN: 43.05, SA_AUX_BN: 44.93},
    "PGD-20": {BN: 40.02, MODE_NORM: 41.85, AUX_BN: 41.60, SA_AUX_BN: 43.14},
}


def claims(settings: AdversarialSettings) -> list[Claim]:
    """Return the orders of Tables 3 and 4, and what the mode of norms during the attack changes."""
    first, last = (RobustMetric(attack, branch=BRANCH) for attack in settings.attacks)
    clean, adversarial = "clean accuracy (clean branch)", "clean accuracy (adversarial branch)"
    result = [
        _order("accuracy", pair, clean, TABLE_3)
        for pair in ((SA_AUX_BN, AUX_BN), (AUX_BN, BN), (SA_AUX_BN, BN), (AUX_BN, MODE_NORM), (BN, MODE_NORM))
    ]
    result += [
        _order(f"accuracy{BRANCH}", pair, adversarial, TABLE_4["clean"])
        for pair in ((BN, SA_AUX_BN), (SA_AUX_BN, AUX_BN), (BN, AUX_BN), (BN, MODE_NORM))
    ]
    for metric, name in ((first, "PGD-10"), (last, "PGD-20")):
        pairs = ((SA_AUX_BN, AUX_BN), (AUX_BN, BN), (SA_AUX_BN, MODE_NORM), (MODE_NORM, BN))
        result += [_order(metric.accuracy, pair, f"robust accuracy ({metric.attack})", TABLE_4[name]) for pair in pairs]
    robust = f"robust accuracy ({last.attack})"
    result += [eval_mode_is_stronger(norm, last, robust) for norm in NORMS]
    trained = (AUX_BN, train_mode_label(AUX_BN))
    result.append(higher("accuracy", trained, clean, NOT_IN_PAPER))
    result.append(higher(last.accuracy, trained, robust, NOT_IN_PAPER))
    return result


def _order(column: str, norms: tuple[str, str], quantity: str, accuracies: dict[str, float]) -> Claim:
    norm, other = norms
    return higher(column, norms, quantity, f"{accuracies[norm]:.2f} and {accuracies[other]:.2f}")


def tables(record: RecipeRecord[AdversarialSettings]) -> list[Table]:
    """Return the accuracies of both branches by norm."""
    result = []
    for branch, title in (("", "clean"), (BRANCH, "adversarial")):
        columns = {"clean images": f"accuracy{branch}"}
        for attack in record.settings.attacks:
            columns[f"{attack}, eval-mode attack"] = RobustMetric(attack, "eval", branch).accuracy
            columns[f"{attack}, train-mode attack"] = RobustMetric(attack, "train", branch).accuracy
        finding = (
            f"Test accuracy in % of the {title} branch, mean ± sd over seeds: on clean images, and on images attacked with norms "
            "in eval and in train mode (the network classifies in eval mode)."
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


RECIPE = Recipe("sabn_adversarial", PRESETS, cells, measure, claims, partial(plot, panels=panels), tables)
