"""Settings and presets of the recipe `bgn_search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anynorm.lab.recipes.support import synthetic_table
from anynorm.lab.recipes.support.settings import Settings, Training
from anynorm.lab.tasks.search.evaluation_task import EvaluationOptions
from anynorm.lab.tasks.search.options import DartsOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Cosine

POLICY_PART = "policies"
"""Name of the part of the recipe that compares search policies, in addition to the two tables of the paper."""
PUBLISHED_SPACE = "darts"
"""The space of the paper's networks: DARTS with 20 cells."""


@dataclass(frozen=True)
class Search:
    """A search for a cell.

    Args:
        training: how the supernet is trained.
        norm: the spec of the norm in the search; None for the norm of the network that is trained afterwards.
        affine: whether the norms have γ and β.
        norms: specs by label that differ from those of the network that is trained afterwards, because the search has other
            channels.
        min_alpha_distance: mean distance of softmax(α) from uniform, in [0, 1), below which a search has chosen nothing; None if
            the record does not have it.
    """

    training: Training
    norm: str | None = None
    affine: bool = True
    norms: Mapping[str, str] = field(default_factory=dict)
    min_alpha_distance: float | None = None

    def spec(self, label: str, norm: str) -> str:
        """Return the norm of the search for a network with a norm.

        Args:
            label: the label of the norm.
            norm: its spec in the network that is trained afterwards.
        """
        spec = self.norm or self.norms.get(label, norm)
        return spec if self.affine else f"{spec}.none"


@dataclass(frozen=True)
class SearchTable:
    """One table of the paper.

    Args:
        space: the search space, see `Config.model`.
        training: how networks of the cell are trained.
        norms: specs by label.
        search: the search for the cell; None if `architecture` is given.
        architecture: the cell, if there is no search.
        min_train_accuracy: training accuracy in % that every network in a claim must reach, unless the paper says it fails. A
            norm that does not reach it fails.
    """

    space: str
    training: Training
    norms: Mapping[str, str]
    search: Search | None = None
    architecture: str = ""
    min_train_accuracy: float = 25.0

    @property
    def ends_with_norm(self) -> bool:
        """Whether networks end with norm, ReLU and mean over positions, so that IN makes all images alike."""
        return self.space.startswith("nasbench201")


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """Settings of both tables, and of search policies on a benchmark.

    Args:
        tables: the tables by name.
        benchmark: path of the table of a benchmark, `synthetic_table.NAME`, or "" for none.
        policies: learning rate of each policy; None for a policy that has none.
        policy_seeds: number of seeds of the policies.
        rounds: number of rounds that a policy plays.
        reward_images: number of images whose accuracy is the reward of a cell.
    """

    tables: Mapping[str, SearchTable]
    benchmark: str = ""
    policies: Mapping[str, float | None] = field(default_factory=dict)
    policy_seeds: int = 0
    rounds: int = 0
    reward_images: int = 0

    @property
    def num_test(self) -> int | None:
        """The number of test images of the first table; None if all of the data set are used."""
        return next(iter(self.tables.values())).training.config.num_test


NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn:8", "PN": "pn", "BGN": "bgn"}
FAST_NORMS = {name: spec for name, spec in NORMS.items() if name != "PN"}
COMMON = Config(lr=0.025, momentum=0.9, weight_decay=3e-4, flip=True)
DESK = replace(COMMON, data="cifar10@16", width=0.5, num_train=4000, num_test=2000, crop=2, epochs=4, num_evals=4, batch_size=64)
DESK_SEARCH = replace(
    DESK, task="darts", model="nasbench201.n1", num_test=1000, num_evals=1, schedule=Cosine(0.04),
    options=DartsOptions(alpha_lr=0.01),
)  # fmt: skip
NIGHT = replace(
    COMMON, task="architecture_evaluation", data="cifar10@16", width=8 / 36, num_train=10_000, crop=2, epochs=12, num_evals=12,
    batch_size=64, options=EvaluationOptions(drop_path=0.0, auxiliary_weight=0.0),
)  # fmt: skip
NIGHT_SEARCH = replace(
    COMMON, task="darts", data="cifar10@16", model="darts.n3", width=0.25, num_train=4000, num_test=1000, crop=2, epochs=8,
    num_evals=4, batch_size=64, schedule=Cosine(0.04), options=DartsOptions(alpha_lr=0.01),
)  # fmt: skip
NIGHT_NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn:4", "BGN": "[1,64]"}
MANAS_CELL = "3,3,3,1,3,3"
"""The cell that MANAS with least squares recommends on the benchmark (`play`); its test accuracy is 94.36 %."""
PAPER_NORMS = NORMS | {"GN": "gn:18", "IN": "in;auxiliary=ln"}
POLICY_LRS = {"least-squares": 0.05, "exp3": 0.01, "random": None}
PAPER_TRAINING = replace(
    COMMON, task="architecture_evaluation", data="cifar10", epochs=600, crop=4, cutout=16, num_evals=60, batch_size=96,
    options=EvaluationOptions(drop_path=0.2, auxiliary_weight=0.4),
)  # fmt: skip
PAPER_SEARCH = replace(
    COMMON, task="darts", data="cifar10", model="darts", epochs=50, crop=4, schedule=Cosine(0.04), num_evals=10, batch_size=64
)  # fmt: skip


def _tiny(config: Config) -> Config:
    return replace(config, data="digits", num_train=32, num_test=32, epochs=1, crop=1, batch_size=16)


def _tables(search: Config, training: Config, norms: dict[str, str]) -> dict[str, SearchTable]:
    """Return both tables on the NAS-Bench-201 space."""
    space = "nasbench201.n1"
    return {
        "Table 3": SearchTable(space, Training(training), norms, search=Search(Training(search), affine=False)),
        "Table 4": SearchTable(space, Training(training), norms, architecture=MANAS_CELL),
    }


PRESETS = {
    "smoke": SearchSettings(
        seeds=2,
        tables=_tables(_tiny(DESK_SEARCH), _tiny(DESK), FAST_NORMS),
        benchmark=synthetic_table.NAME,
        policies=POLICY_LRS,
        policy_seeds=2,
        rounds=40,
        reward_images=160,
    ),
    "desk": SearchSettings(
        seeds=3,
        tables=_tables(DESK_SEARCH, DESK, NORMS),
        benchmark="nasbench201/nb201.npz",
        policies=POLICY_LRS,
        policy_seeds=20,
        rounds=2000,
        reward_images=160,
    ),
    "night": SearchSettings(
        seeds=5,
        tables={
            "Table 3": SearchTable(
                "darts.n3",
                Training(NIGHT),
                NIGHT_NORMS,
                search=Search(Training(NIGHT_SEARCH), norms={"GN": "gn:2"}, min_alpha_distance=0.05),
                min_train_accuracy=35.0,
            ),
            "Table 4": SearchTable("darts.n3", Training(NIGHT), NIGHT_NORMS, architecture="v2", min_train_accuracy=35.0),
        },
    ),
    "paper": SearchSettings(
        seeds=3,
        tables={
            "Table 3": SearchTable(
                "darts",
                Training(PAPER_TRAINING),
                PAPER_NORMS | {"BGN": "[1,256]"},
                search=Search(Training(PAPER_SEARCH), norms={"GN": "gn:8", "IN": "in"}, min_alpha_distance=0.05),
                min_train_accuracy=80.0,
            ),
            "Table 4": SearchTable(
                "darts",
                Training(replace(PAPER_TRAINING, batch_size=64)),
                PAPER_NORMS | {"BGN": "[1,64]"},
                search=Search(Training(replace(PAPER_SEARCH, task="manas_least_squares")), norm="bn"),
                min_train_accuracy=80.0,
            ),
        },
    ),
}
