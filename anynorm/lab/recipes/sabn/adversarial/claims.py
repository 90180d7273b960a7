"""Controls and claims of `sabn_adversarial`."""

from __future__ import annotations

from anynorm.lab.recipes.sabn.adversarial.settings import AUX_BN, BN, BRANCH, MODE_NORM, NORMS, SA_AUX_BN
from anynorm.lab.recipes.support.adversarial import AdversarialSettings, eval_mode_is_stronger, higher, train_mode_label
from anynorm.lab.recipes.support.claims import OURS, RATIO, Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Measured, accuracy_of
from anynorm.lab.tasks.classification.robustness import RobustMetric

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
        for pair in (
            (SA_AUX_BN, AUX_BN),
            (AUX_BN, BN),
            (SA_AUX_BN, BN),
            (AUX_BN, MODE_NORM),
            (SA_AUX_BN, MODE_NORM),
            (BN, MODE_NORM),
        )
    ]
    result += [
        _order(f"accuracy{BRANCH}", pair, adversarial, "Table 4", TABLE_4["clean"], settings.num_test)
        for pair in ((BN, SA_AUX_BN), (SA_AUX_BN, AUX_BN), (BN, AUX_BN), (BN, MODE_NORM), (SA_AUX_BN, MODE_NORM))
    ]
    result.append(
        Equivalent(
            statement=f"the {adversarial} of `{SA_AUX_BN}` is on par with that of `{BN}`",
            source=Source("sabn", "sec. 5.1, SA on par", "SaAuxBN is on par with the vanilla BN in terms of SA"),
            published=Published(TABLE_4["clean"][SA_AUX_BN], TABLE_4["clean"][BN]),
            first=Measured(f"accuracy{BRANCH}", {"norm": SA_AUX_BN}, settings.num_test),
            second=Measured(f"accuracy{BRANCH}", {"norm": BN}, settings.num_test),
            delta=ON_PAR,
            group=_group(f"accuracy{BRANCH}", (BN, SA_AUX_BN)),
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
            pair, group = (norm, train_mode_label(norm)), f"{norm}, eval-mode or train-mode attacks in training"
            result.append(higher("accuracy", pair, clean, OURS, group=group))
            result.append(higher(last.accuracy, pair, robust, OURS, group=group, num_attacked=num_attacked))
    if train_mode_label(SA_AUX_BN) in settings.norms:
        pair, requires = (train_mode_label(SA_AUX_BN), train_mode_label(AUX_BN)), (BRANCHES_MATTER,)
        group = f"{SA_AUX_BN} > {AUX_BN}, train-mode attacks in training"
        result.append(higher("accuracy", pair, clean, OURS, group=group, requires=requires))
        result.append(higher(last.accuracy, pair, robust, OURS, group=group, requires=requires, num_attacked=num_attacked))
    return result


def _order(
    column: str,
    norms: tuple[str, str],
    quantity: str,
    place: str,
    accuracies: dict[str, float],
    num_images: int | None = None,
) -> Larger:
    """Return an order of a table."""
    norm, other = norms
    return higher(
        column,
        norms,
        quantity,
        Source("sabn", place),
        Published(accuracies[norm], accuracies[other]),
        group=_group(column, norms),
        requires=() if set(norms) == {BN, MODE_NORM} else (BRANCHES_MATTER,),
        num_attacked=num_images,
    )


def _group(column: str, norms: tuple[str, str]) -> str:
    """Return the group of a claim: what two networks do with the same images is counted once.

    PGD-10, PGD-20 and the adversarial loss attack the same branch. Clean accuracy and clean loss are those of one branch, too. BN
    and ModeNorm have one branch, which both tables have.
    """
    if column.startswith(("robust", "adversarial")):
        kind = "attacked images"
    elif set(norms) == {BN, MODE_NORM}:
        kind = "clean images"
    else:
        kind = f"clean images, {'adversarial' if column.endswith(BRANCH) else 'clean'} branch"
    return f"{norms[0]} > {norms[1]}, {kind}"


def _lower_loss(column: str, branch: str) -> Larger:
    """Return an order of Fig. 6."""
    return Larger(
        statement=f"the {branch} loss on test images of `{AUX_BN}` is larger than that of `{SA_AUX_BN}`",
        source=Source("sabn", "Fig. 6", "the latter achieves lower value on both"),
        larger=Measured(column, {"norm": AUX_BN}),
        smaller=Measured(column, {"norm": SA_AUX_BN}),
        scale=RATIO,
        group=_group(column, (SA_AUX_BN, AUX_BN)),
        requires=(BRANCHES_MATTER,),
    )
