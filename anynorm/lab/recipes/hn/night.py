"""How the presets `night` train: for hours on two cores, until networks have learned.

Every optimizer step has 32 images at all batch sizes: at batch size 4 it accumulates the gradients of 8 forward passes. So all
batch sizes have the same number of steps, the same images and the same learning rate; they differ only in their statistics. The
last feature maps have 4 × 4 pixels: at batch size 4, a statistic of BN is computed from 64 values, as in the paper.

Until a record exists, the numbers are subject to a pilot.
"""

from __future__ import annotations

from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.training.config import Config

SAMPLES_PER_STEP = 32
NIGHT = Training(
    Config(
        data="cifar10@16", model="small", num_train=10_000, crop=2, flip=True,
        epochs=10, lr=0.1, weight_decay=5e-4, schedule="cosine", num_evals=10,
    ),
    base_batch_size=SAMPLES_PER_STEP,
    samples_per_step=SAMPLES_PER_STEP,
)  # fmt: skip
"""10 000 images of CIFAR-10 at 16 × 16 pixels, three stages, 3120 steps; all 10 000 test images."""
NIGHT_ACCURACY = 40.0
"""Training accuracy in % that every network of `NIGHT` must reach; chance is 10."""
NIGHT_PETS = Training(
    Config(
        data="folder:pets", image_size=32, model="resnet10", crop=4, flip=True,
        epochs=50, lr=0.05, weight_decay=5e-4, schedule="cosine", warmup_epochs=2, num_evals=10,
    ),
    base_batch_size=SAMPLES_PER_STEP,
    samples_per_step=SAMPLES_PER_STEP,
)  # fmt: skip
"""All 1480 training images of 37 breeds of pets at 32 × 32 pixels, ResNet-10, 2300 steps; all 740 test images."""
NIGHT_PETS_ACCURACY = 25.0
"""Training accuracy in % that every network of `NIGHT_PETS` must reach; chance is 2.7."""
