"""Settings and presets of the recipe `bgn_adaptation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anynorm.lab.recipes.bgn.group_choice import GroupSweep
from anynorm.lab.recipes.support.settings import Training, TrainingSettings
from anynorm.lab.tasks.adaptation.options import CANOptions
from anynorm.lab.training.config import Config


@dataclass(frozen=True)
class Method:
    """A method of adaptation.

    Args:
        task: the task.
        norm: the spec.
    """

    task: str
    norm: str


@dataclass(frozen=True)
class DomainPair:
    """A source and a target.

    Args:
        data: the source.
        target: the target.
        bgn: the spec of "bgn" for this pair; None for that of the settings.
    """

    data: str
    target: str
    bgn: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings(TrainingSettings):
    """Settings of domain adaptation.

    Args:
        norms: methods by label.
        pairs: pairs of domains by name, over which accuracies are averaged; empty for the domains of the training.
        mean_of_last: number of last evaluations over which the mean of the accuracy on the target is taken.
        groups: the sweep that chooses G of the norm labeled `bgn`, for pairs that do not give it.
        min_train_accuracy: accuracy in % on the source's training images that every network in a claim must reach. None: the
            accuracy on the target before adaptation must reach 25 %, 2.5 × chance with ten classes.
    """

    norms: Mapping[str, Method]
    pairs: Mapping[str, DomainPair] = field(default_factory=dict)
    mean_of_last: int = 1
    groups: GroupSweep = field(default_factory=GroupSweep)
    min_train_accuracy: float | None = None

    @property
    def num_validation(self) -> int:
        """0: runs with pilot seeds are tested on held-out images of the target, not of the source."""
        return 0


NORMS = {
    "bn": Method("can", "bn.aux@2"),
    "bgn": Method("can", "bgn.aux@2"),
    "gn": Method("can", "gn:8.cc@2"),
    "in": Method("can", "in.cc@2"),
    "ln": Method("can", "ln.cc@2"),
    "pn": Method("can", "pn.cc@2"),
}
BASELINES = {"bn, shared": Method("can", "bn"), "dsbn": Method("dsbn", "bn.aux@2")}
SMOKE = Config(
    task="can", data="digits", model="small", width=0.5, num_train=160, num_test=100, epochs=2, lr=0.05, schedule="constant",
    num_evals=2,
    options=CANOptions(target="digits-faded", source_epochs=1, steps_per_loop=3, adaptation_lr=0.01),
)  # fmt: skip
DESK = Config(
    task="can", data="usps", model="small", num_train=2000, num_test=2000, epochs=9, lr=0.05, schedule="constant",
    num_evals=3,
    options=CANOptions(target="mnist@16", source_epochs=6, steps_per_loop=40, adaptation_lr=0.01),
)  # fmt: skip
NIGHT = replace(
    DESK, num_test=None, epochs=12, num_evals=24,
    options=CANOptions(target="mnist@16", source_epochs=6, steps_per_loop=40, adaptation_lr=0.01),
)  # fmt: skip
EVENING = Config(
    task="can", data="pacs/photo", model="anynorm.lab.recipes.support.pretrained:efficientnet_lite0", image_size=64,
    num_train=1500, num_test=1500, flip=True, epochs=6, lr=0.01, schedule="constant", num_evals=6, batch_size=30,
    options=CANOptions(
        target="pacs/sketch", source_epochs=3, steps_per_loop=40, adaptation_lr=0.001, head_lr_factor=10.0,
        classes_per_batch=7, fit_images=128,
    ),
)  # fmt: skip
PAPER = Config(
    task="can", model="anynorm.lab.recipes.support.pretrained:resnet50", image_size=224, flip=True, epochs=300,
    optimizer="adam", lr=1e-3, schedule="constant", num_evals=60, batch_size=30,
    options=CANOptions(
        source_epochs=5, steps_per_loop=90, head_lr_factor=10.0, fit_images=128,
        decay_steps=25, decay_rate=0.1, stop_distance=1e-3, max_loops=50,
    ),
)  # fmt: skip
PRESETS = {
    "smoke": AdaptationSettings(
        seeds=2,
        training=Training(SMOKE, base_batch_size=32),
        norms={name: (NORMS | BASELINES)[name] for name in ("bn", "gn", "bn, shared", "dsbn", "bgn")},
        mean_of_last=2,
        groups=GroupSweep((4, 1), seeds=1),
        min_train_accuracy=25.0,
    ),
    "desk": AdaptationSettings(seeds=5, training=Training(DESK, base_batch_size=32), norms=NORMS | BASELINES),
    "night": AdaptationSettings(
        seeds=15,
        training=Training(NIGHT, base_batch_size=32),
        norms={name: NORMS[name] for name in ("bn", "gn", "ln", "bgn")},
        mean_of_last=5,
        groups=GroupSweep((128, 32, 8, 1), seeds=4),
        min_train_accuracy=90.0,
    ),
    "evening": AdaptationSettings(
        seeds=3, training=Training(EVENING, base_batch_size=30), norms=NORMS | BASELINES, min_train_accuracy=80.0
    ),
    "paper": AdaptationSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=30),
        norms=NORMS | {"gn": Method("can", "gn:32.cc@2")},
        min_train_accuracy=90.0,
        pairs={
            "A to D": DomainPair("office31/amazon", "office31/dslr", bgn="bgn:1.aux@2"),
            "A to W": DomainPair("office31/amazon", "office31/webcam", bgn="bgn:8.aux@2"),
            "D to A": DomainPair("office31/dslr", "office31/amazon", bgn="bgn:512.aux@2"),
            "D to W": DomainPair("office31/dslr", "office31/webcam", bgn="bgn:32.aux@2"),
            "W to A": DomainPair("office31/webcam", "office31/amazon", bgn="bgn:512.aux@2"),
            "W to D": DomainPair("office31/webcam", "office31/dslr", bgn="bgn:512.aux@2"),
        },
    ),
}
