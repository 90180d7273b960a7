"""The options of classification: attacks on the trained network, and batch averages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anynorm.lab.attacks import EPSILON, PGD, STEP_SIZE, Attack, parse
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class ClassificationOptions(Options):
    """The options of `anynorm.lab.tasks.classification.task.Classification`.

    Raises:
        SpecError: if an attack is invalid.
    """

    attack: tuple[str, ...] = option((), 'comma-separated attacks on the trained network, such as "pgd:4,pgd:10"; "" for none.')
    epsilon: float = option(EPSILON, "maximum change of a pixel value by an attack, for pixel values in [0, 1].")
    step_size: float = option(STEP_SIZE, "change of a pixel value per step of PGD, for pixel values in [0, 1].")
    restarts: int = option(
        1, "number of random starts of PGD in evaluations; the result with the largest loss counts for each image."
    )
    num_attacked: int = option(
        1000, "number of test images to attack, rounded down to a multiple of 100 if it is larger.", minimum=1
    )
    averaged_samples: int = option(
        0,
        "number of training images over whose batches statistics are averaged for a further evaluation, at every evaluation (sn "
        "sec. 2.1: batch average); 0 for none.",
        minimum=0,
    )

    def check(self) -> None:
        """Check the attacks."""
        self.make_attacks()

    def make_attacks(self) -> list[Attack]:
        """Return the attacks of evaluations, with norms in eval mode.

        >>> [str(attack) for attack in ClassificationOptions(attack=("fgsm", "pgd:4")).make_attacks()]
        ['fgsm', 'pgd:4']
        """
        attacks = []
        for text in dict.fromkeys(self.attack):
            attack = parse(text, epsilon=self.epsilon, step_size=self.step_size)
            attacks.append(replace(attack, restarts=self.restarts) if isinstance(attack, PGD) else attack)
        return attacks
