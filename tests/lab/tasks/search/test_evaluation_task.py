"""Training of a found architecture: the auxiliary loss, drop-path that rises with the training, and clipped gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.models.search.darts.cells import DropPath
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config

QUICK = Config(
    task="architecture_evaluation", model="darts.n3:v2", width=0.12, num_train=32, num_test=32, batch_size=16, epochs=1, lr=0.025,
    num_evals=2,
)  # fmt: skip


def test_the_loss_adds_the_weighted_loss_of_the_auxiliary_head():
    task: Any = make_trainer(QUICK).task
    x, labels = task.training_batch(0)
    metrics = task.loss((x, labels))
    logits, auxiliary = task.model.forward_both(x)
    expected = nn.functional.cross_entropy(logits, labels) + 0.4 * nn.functional.cross_entropy(auxiliary, labels)
    torch.testing.assert_close(metrics["loss"], expected)
    without: Any = make_task(replace(QUICK, options={"auxiliary_weight": 0.0}))
    assert without.model.auxiliary is None


def test_drop_path_rises_linearly_to_its_option():
    trainer = make_trainer(QUICK)
    probabilities = []
    for _ in range(trainer.steps):
        trainer.training_step()
        probabilities.append({module.p for module in trainer.task.modules() if isinstance(module, DropPath)})
    assert probabilities == [{0.2 * k / trainer.steps} for k in range(trainer.steps)]


def test_gradients_are_clipped_before_an_update():
    trainer = make_trainer(replace(QUICK, momentum=0.0, weight_decay=0.0, options={"clip_grad_norm": 1e-3}))
    before = nn.utils.parameters_to_vector(trainer.task.parameters()).detach().clone()
    trainer.training_step()
    change = nn.utils.parameters_to_vector(trainer.task.parameters()).detach() - before
    assert float(change.norm()) == pytest.approx(1e-3 * QUICK.lr, rel=1e-2)  # parameters are rounded to float32


def test_errors_name_what_must_be():
    with pytest.raises(SpecError, match=r"must be darts:GENOTYPE; got 'resnet10'\. Other architectures: task classification"):
        make_task(replace(QUICK, model="resnet10"))
    with pytest.raises(SpecError, match="must be darts:GENOTYPE; got 'nasbench201:3,3,3,1,3,3'"):
        make_task(replace(QUICK, model="nasbench201:3,3,3,1,3,3"))
    with pytest.raises(SpecError, match="auxiliary_weight must be 0 or more; got -1"):
        make_task(replace(QUICK, options={"auxiliary_weight": -1.0}))
    with pytest.raises(SpecError, match=r"drop_path must be in \[0, 1\); got 1"):
        make_task(replace(QUICK, options={"drop_path": 1.0}))
    with pytest.raises(SpecError, match="clip_grad_norm must be 0 or more; got -5"):
        make_task(replace(QUICK, options={"clip_grad_norm": -5.0}))
