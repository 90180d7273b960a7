"""Settings and presets of `sabn_adversarial`."""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.support.adversarial import AdversarialSettings, trained_norms
from anynorm.lab.recipes.support.presets import tiny
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.adversarial.options import AdvPropOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.schedules import Step

BRANCH = "_adversarial_branch"
"""The suffix of the columns of the adversarial branch."""
BN, MODE_NORM, AUX_BN, SA_AUX_BN = NORMS = ("bn", "modenorm:2", "auxbn@2", "saauxbn@2")
OPTIONS = AdvPropOptions(train_attack="pgd:3", attack=("pgd:10", "pgd:20"), num_attacked=300)
CONFIG = Config(
    task="advprop", data="cifar10@16", model="preact_resnet8", num_train=9600, num_test=2000, crop=2, flip=True, epochs=2,
    lr=0.1, weight_decay=5e-4, schedule="cosine", num_evals=1, batch_size=64, options=OPTIONS,
)  # fmt: skip
SMOKE = replace(
    tiny(CONFIG), width=0.5, crop=0, batch_size=32,
    options=replace(OPTIONS, attack=("pgd:2", "pgd:3"), loss_attack="pgd:2", num_attacked=20),
)  # fmt: skip
NIGHT = replace(
    CONFIG, num_train=20_000, num_test=None, epochs=8, num_evals=10,
    options=replace(OPTIONS, num_attacked=2000, loss_weight=0.5, loss_attack="pgd:10"),
)  # fmt: skip
PAPER = replace(
    CONFIG, data="cifar10", model="preact_resnet18", num_train=45_000, num_test=None, crop=4, epochs=200,
    schedule=Step((0.25, 0.75)), warmup_epochs=200 / (45_000 // 128), batch_size=128, num_evals=20,
    options=replace(OPTIONS, train_attack="pgd:10", num_attacked=10_000, loss_weight=0.5, loss_attack="pgd:10"),
)  # fmt: skip
BOTH_MODES = trained_norms(*NORMS, train_mode=(AUX_BN, SA_AUX_BN))
"""All norms; AuxBN and SaAuxBN also as in the public code, with train-mode attacks in training."""
PRESETS = {
    "smoke": AdversarialSettings(seeds=2, training=Training(SMOKE, base_batch_size=32), norms=BOTH_MODES, min_train_accuracy=0.0),
    "desk": AdversarialSettings(
        seeds=3, training=Training(CONFIG, base_batch_size=64), norms=trained_norms(*NORMS, train_mode=(AUX_BN,))
    ),
    "night": AdversarialSettings(
        seeds=6, training=Training(NIGHT, base_batch_size=64), norms=BOTH_MODES, min_train_accuracy=50.0
    ),
    "paper": AdversarialSettings(
        seeds=3, training=Training(PAPER, base_batch_size=128), norms=BOTH_MODES, min_train_accuracy=80.0
    ),
}
