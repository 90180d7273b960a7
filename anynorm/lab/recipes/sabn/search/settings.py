"""Settings and presets of `sabn_search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.settings import Settings, Training
from anynorm.lab.tasks.search.options import DartsOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Cosine

TABLE = "nasbench201/nb201.npz"


@dataclass(frozen=True)
class Method:
    """The norms of a supernet.

    Args:
        norm: the spec; K is the number of operations.
        sample_conditions: whether the classes of the norms are drawn from softmax(α), or always 0.
    """

    norm: str
    sample_conditions: bool = True


@dataclass(frozen=True)
class Search:
    """A search.

    Args:
        training: how the supernet is trained.
        accuracies: the data sets of the benchmark whose accuracies are reported.
    """

    training: Training
    accuracies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """Settings of searches with several norms.

    Args:
        searches: searches by the name of their data set.
        methods: norms by the name of the method.
        metrics: the metrics that are compared, names of `METRICS`.
        min_alpha_distance: distance of softmax(α) from uniform below which a search has chosen nothing; at most 0.8.
        min_accuracy: accuracy of the supernet in % below which it has not learned.
    """

    searches: Mapping[str, Search]
    methods: Mapping[str, Method]
    metrics: tuple[str, ...] = ("cell accuracy", "expected accuracy", "rank correlation")
    min_alpha_distance: float = 0.2
    min_accuracy: float = 25.0


METHODS = {
    "DARTS": Method("bn.none"),
    "DARTS-affine": Method("bn"),
    "DARTS-CCBN": Method("ccbn@K"),
    "DARTS-SaBN": Method("sabn@K"),
    "DARTS-SaBN, class 0": Method("sabn@K", sample_conditions=False),
}
COMMON = Config(task="darts", lr=0.025, schedule=Cosine(0.04), momentum=0.9, nesterov=True, weight_decay=5e-4, flip=True)
DESK = replace(
    COMMON, data="cifar10@16", model="nasbench201.n1", width=0.5, num_train=38_400, num_test=1000, epochs=1, crop=2, num_evals=6,
    batch_size=32, options=DartsOptions(alpha_lr=0.01, table=TABLE),
)  # fmt: skip
SMOKE = replace(
    DESK, data="digits", num_train=32, num_test=32, crop=1, num_evals=2, batch_size=8,
    options=DartsOptions(alpha_lr=0.01, table=synthetic_table.NAME),
)  # fmt: skip
NIGHT = replace(DESK, num_test=None, epochs=5, num_evals=10, options=DartsOptions(alpha_lr=0.01, weights_first=True, table=TABLE))
"""3000 steps: 5 epochs of 600 steps."""
PAPER = replace(
    COMMON, model="nasbench201", epochs=50, stop_epoch=35, num_evals=50, batch_size=64,
    options=DartsOptions(alpha_lr=3e-4, alpha_from_test=True, weights_first=True, table=TABLE),
)  # fmt: skip
CIFAR_100 = replace(PAPER, data="cifar100", crop=4)
IMAGENET_16 = replace(PAPER, data="folder:imagenet16-120", image_size=16, crop=2)
PRESETS = {
    "smoke": SearchSettings(
        seeds=2,
        searches={"digits": Search(Training(SMOKE, base_batch_size=8), ("cifar100", "imagenet16"))},
        methods=METHODS,
        min_alpha_distance=0.0,
        min_accuracy=0.0,
    ),
    "desk": SearchSettings(
        seeds=3,
        searches={"CIFAR-10": Search(Training(DESK, base_batch_size=32), ("cifar100", "imagenet16"))},
        methods=METHODS,
    ),
    "night": SearchSettings(
        seeds=12,
        searches={"CIFAR-10": Search(Training(NIGHT, base_batch_size=32), ("cifar100",))},
        methods=METHODS,
        min_accuracy=50.0,
    ),
    "paper": SearchSettings(
        seeds=3,
        searches={
            "CIFAR-100": Search(Training(CIFAR_100, base_batch_size=64), ("cifar100",)),
            "ImageNet16-120": Search(Training(IMAGENET_16, base_batch_size=64), ("imagenet16",)),
        },
        methods=METHODS,
        min_accuracy=10.0,
    ),
}
