"""The options of adversarial training and of AdvProp."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.attacks import NORM_MODES, Attack, parse
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.training.options import option


@dataclass(frozen=True)
class AdversarialOptions(ClassificationOptions):
    """The options of `anynorm.lab.tasks.adversarial.task.Adversarial`.

    Raises:
        SpecError: if an attack is invalid, or epsilon is not in [0, 1].
    """

    attack: tuple[str, ...] = option(
        ("pgd:10",), "comma-separated attacks of evaluations; runs are compared by the error under the first."
    )
    train_attack: str = option("pgd:4", "attack that makes the images of training steps, such as pgd:4 or fgsm.")
    attack_norm_mode: str = option(
        "eval", "mode of the norms during the attacks of training steps, eval or train.", choices=NORM_MODES
    )

    def check(self) -> None:
        """Check the attacks of evaluations and of training steps."""
        super().check()
        self.make_train_attack()

    def make_train_attack(self) -> Attack:
        """Return the attack of training steps."""
        return parse(self.train_attack, epsilon=self.epsilon, step_size=self.step_size, norm_mode=self.attack_norm_mode)


@dataclass(frozen=True)
class AdvPropOptions(AdversarialOptions):
    """The options of `anynorm.lab.tasks.adversarial.advprop.AdvProp`."""

    attack: tuple[str, ...] = option(("pgd:10",), "comma-separated attacks of the last evaluation.")
    train_attack: str = option("pgd:10", "attack that makes the adversarial images of training steps, such as pgd:4 or fgsm.")
    loss_weight: float = option(1.0, "factor w of the sum of the losses on clean and on adversarial images.")
    loss_attack: str = option(
        "",
        "attack on the adversarial branch in every evaluation, whose mean cross entropy is the metric adversarial_loss "
        '(sabn Fig. 6); "" for none.',
    )

    def check(self) -> None:
        """Check the attacks of evaluations and of training steps."""
        super().check()
        self.make_loss_attack()

    def make_loss_attack(self) -> Attack | None:
        """Return the attack of the metric adversarial_loss, or None."""
        return parse(self.loss_attack, epsilon=self.epsilon, step_size=self.step_size) if self.loss_attack else None
