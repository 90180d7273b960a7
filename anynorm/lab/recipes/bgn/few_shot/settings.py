"""Settings and presets of the recipe `bgn_few_shot`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anynorm.lab.recipes.bgn.group_choice import CANDIDATES, GroupSweep
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.tasks.few_shot.options import FewShotOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step


@dataclass(frozen=True, kw_only=True)
class FewShotSettings(TrainingSettings):
    """Settings of few-shot classification.

    Args:
        norms: specs by label.
        lrs: learning rates by label, instead of `training.config.lr`.
        groups: the sweep that chooses G of `bgn` by the 1-shot accuracy on validation classes.
        min_train_accuracy: accuracy in % on the base classes that every network in a claim must reach. 10 % is 20 times chance
            with 200 classes.
    """

    norms: Mapping[str, str]
    lrs: Mapping[str, float] = field(default_factory=dict)
    groups: GroupSweep = field(default_factory=GroupSweep)
    min_train_accuracy: float = 10.0

    @property
    def num_validation(self) -> int:
        """0: runs with pilot seeds are tested on validation classes, not on held-out images of base classes."""
        return 0


COMMON = Config(
    task="few_shot",
    model="resnet12",
    lr=0.1,
    nesterov=True,
    schedule=Step((1 / 3, 2 / 3, 5 / 6), (0.06, 0.012, 0.0024)),
    num_evals=1,
)
DESK = replace(
    COMMON, data="omniglot", width=0.125, epochs=10, batch_size=64,
    options=FewShotOptions(num_base_classes=200, padding=2, num_episodes=300),
)  # fmt: skip
NIGHT = replace(
    DESK, epochs=32, schedule="cosine", num_evals=8,
    options=FewShotOptions(num_base_classes=200, padding=2, num_episodes=600),
)  # fmt: skip
SMOKE = replace(
    DESK, data="digits", num_train=64, epochs=1, batch_size=16,
    options=FewShotOptions(padding=4, num_ways=4, num_episodes=10, num_queries=5),
)  # fmt: skip
PAPER = replace(
    COMMON,
    data="miniimagenet",
    image_size=84,
    crop=8,
    flip=True,
    epochs=400,
    batch_size=256,
    num_evals=20,
    options=FewShotOptions(num_episodes=600),
)  # 60 000 steps
NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn:8", "PN": "pn", "BGN": "bgn"}
PRESETS = {
    "smoke": FewShotSettings(
        seeds=2,
        training=Training(SMOKE, base_batch_size=16),
        norms=NORMS,
        groups=GroupSweep((4, 1), seeds=1),
        min_train_accuracy=40.0,
    ),
    "desk": FewShotSettings(seeds=3, training=Training(DESK, base_batch_size=64), norms=NORMS),
    "night": FewShotSettings(
        seeds=6,
        training=Training(NIGHT, base_batch_size=64),
        norms=NORMS,
        lrs={"BN": 0.1, "IN": 0.1, "LN": 0.03, "GN": 0.03, "PN": 0.03, "BGN": 0.1},
        groups=GroupSweep(CANDIDATES),
        min_train_accuracy=50.0,
    ),
    "paper": FewShotSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=256),
        norms=NORMS | {"GN": "gn:32"},
        groups=GroupSweep((256, 64, 16, 1), seeds=1),
        min_train_accuracy=50.0,
    ),
}
