"""Settings and presets of `sabn_generation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anynorm.lab.data.shape import DataShape
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.tasks.generation.networks import split_size
from anynorm.lab.tasks.generation.options import GenerationOptions
from anynorm.lab.training.config import Config

NORMS = {"CCBN": "ccbn@K", "SaBN": "sabn@K"}
MANY = "SNGAN, many classes"
"""The network of Figs. 2 to 4, whose data have many classes."""
MANY_CLASSES = "anynorm.lab.recipes.sabn.cifar_clusters:cifar10_140"
IMAGE_SIZES = {"digits": 8, "cifar10": 32, "cifar10@16": 16, MANY_CLASSES: 16}
"""Height and width of the images of data sets whose `Config` does not say it."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(Settings):
    """Settings of conditional generation.

    Args:
        networks: the configuration of each network by label. Adam's learning rate does not follow the batch size.
        norms: specs by label.
        num_last_evals: number of last evaluations whose mean is the value of a run.
        min_class_accuracy: class accuracy of generated images, in % of that of real ones, that a generator must reach.
    """

    networks: Mapping[str, Config]
    norms: Mapping[str, str]
    num_last_evals: int
    min_class_accuracy: float = 60.0

    @property
    def features(self) -> str:
        """The feature network of the distances."""
        return str(options_of(next(iter(self.networks.values()))).features)


COMMON = Config(task="generation", model="sngan", weight_decay=0.0, schedule="constant")
DESK = replace(
    COMMON, data="cifar10@16", width=0.125, num_train=9600, epochs=4, lr=4e-4, ema_decay=0.99, num_evals=6, batch_size=32,
    options=GenerationOptions(
        n_dis=2, features="resnet20", num_generated=2000, num_reference=10_000, balance_interval=100, balance_draws=2,
    ),
)  # fmt: skip
SMOKE = replace(
    DESK, data="digits", width=1 / 32, num_train=64, epochs=4, num_evals=2,
    options=GenerationOptions(
        n_dis=2, num_generated=100, num_reference=200, intra_class=False, balance_interval=2, balance_draws=2,
        balance_batch_size=1, balance_classes=4,
    ),
)  # fmt: skip
NIGHT = replace(
    DESK, num_train=32_000, epochs=8, ema_decay=0.999, num_evals=10,
    options=GenerationOptions(
        n_dis=2, features="resnet32", num_generated=10_000, num_reference=10_000, intra_class=False, balance_interval=400,
        balance_draws=8, balance_batch_size=1, balance_classes=0,
    ),
)  # fmt: skip
"""4000 steps: 8 epochs of 500 steps, each of two batches of 32 images."""
NIGHT_MANY = replace(NIGHT, data=MANY_CLASSES, num_train=12_800, epochs=20, options=replace(options_of(NIGHT), balance_draws=2))
"""4000 steps: 20 epochs of 200 steps; the clusters have 14 000 training images."""
PAPER_OPTIONS = GenerationOptions(
    n_dis=5, generator_batch_size=128, features="inception", num_generated=50_000, intra_class=False, balance_interval=1000,
    balance_draws=8, balance_batch_size=1, balance_classes=0,
)  # fmt: skip
PAPER = replace(COMMON, data="cifar10", epochs=320, lr=2e-4, ema_decay=0.999, num_evals=16, batch_size=64, options=PAPER_OPTIONS)
PAPER_BIGGAN = replace(
    PAPER, model="biggan", batch_size=50, epochs=500, ema_decay=0.9999,
    options=replace(PAPER_OPTIONS, n_dis=4, generator_batch_size=50, beta2=0.999),
)  # fmt: skip
PAPER_IMAGENET = replace(
    PAPER, data="stream:imagenet-dogs-cats", image_size=128, batch_size=16, epochs=194,
    options=replace(PAPER_OPTIONS, generator_batch_size=32, num_generated=20_000),
)  # fmt: skip
"""450 000 steps of five batches of 16 of the 186 000 images of 143 classes."""
PRESETS = {
    "smoke": GenerationSettings(seeds=2, networks={"SNGAN": SMOKE}, norms=NORMS, num_last_evals=3, min_class_accuracy=0.0),
    "desk": GenerationSettings(
        seeds=3,
        networks={
            "SNGAN": DESK,
            "BigGAN": replace(DESK, model="biggan"),
            "AutoGAN": replace(DESK, model="autogan"),
            MANY: replace(DESK, data=MANY_CLASSES),
        },
        norms=NORMS,
        num_last_evals=3,
    ),
    "night": GenerationSettings(seeds=6, networks={"SNGAN": NIGHT, MANY: NIGHT_MANY}, norms=NORMS, num_last_evals=3),
    "paper": GenerationSettings(
        seeds=3,
        networks={
            "SNGAN": PAPER,
            "BigGAN": PAPER_BIGGAN,
            "AutoGAN": replace(PAPER, model="autogan"),
            MANY: PAPER_IMAGENET,
        },
        norms=NORMS,
        num_last_evals=1,
    ),
}


def stages(config: Config) -> list[str]:
    """Return the stages of a generator that have norms after them: the linear layer and the blocks."""
    size = config.image_size if config.data.startswith("stream:") else IMAGE_SIZES[config.data]
    return ["linear", *(f"blocks.{block}" for block in range(split_size(DataShape(3, size, size, 10))[1]))]
