"""How the presets `night` train on photos of pets, which stand for Caltech-256.

Every optimizer step has 32 images at all batch sizes, as in `support.presets.NIGHT`. Until a record exists, the numbers are
subject to a pilot.
"""

from __future__ import annotations

from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.training.config import Config

NIGHT_PETS = Training(
    Config(
        data="folder:pets", image_size=32, model="resnet10", crop=4, flip=True,
        epochs=50, lr=0.05, weight_decay=5e-4, schedule="cosine", warmup_epochs=2, num_evals=10,
    ),
    base_batch_size=32,
    samples_per_step=32,
)  # fmt: skip
"""All 1480 training images of 37 breeds of pets at 32 × 32 pixels, ResNet-10, 2300 steps; all 740 test images."""
NIGHT_PETS_ACCURACY = 25.0
"""Training accuracy in % that every network of `NIGHT_PETS` must reach; chance is 2.7."""
