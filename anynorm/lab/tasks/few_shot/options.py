"""The options of few-shot classification."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.errors import SpecError
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class FewShotOptions(Options):
    """The options of `anynorm.lab.tasks.few_shot.task.FewShot`.

    Raises:
        SpecError: if there is no number of shots.
    """

    num_base_classes: int = option(0, "number of base classes, chosen by the seed of the run; 0 for all.")
    padding: int = option(0, "width of the border of zeros that is added to images, in pixels.", minimum=0)
    num_ways: int = option(5, "number of novel classes per episode.", minimum=2)
    shots: tuple[int, ...] = option(
        (1, 5), "numbers of images per novel class to learn from; runs are compared by the first.", minimum=1
    )
    num_queries: int = option(15, "number of images per novel class to classify in an episode.", minimum=1)
    num_episodes: int = option(600, "number of episodes of an evaluation.", minimum=2)
    within_alphabet: bool = option(
        True, "whether all classes of an episode belong to one alphabet, if the data set has alphabets (Omniglot)."
    )
    episode_seed: int = option(
        0, "seed of the episodes; not the seed of the run, so that all runs are evaluated with the same episodes."
    )
    transductive: bool = option(
        False, "whether evaluations also have the accuracy with norms that use the statistics of an episode's queries."
    )

    def check(self) -> None:
        """Check that there is a number of shots."""
        if not self.shots:
            raise SpecError("shots must be at least one number; got none.")
