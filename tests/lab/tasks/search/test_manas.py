"""Searches by bandits: a round trains the drawn path alone, and the policy learns its loss on the other half of the images."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from anynorm.errors import SpecError
from anynorm.lab.tasks import make_task, run
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError

TASKS = ("manas_exp3", "manas_least_squares", "random_search")
QUICK = Config(
    task="manas_exp3",
    model="nasbench201.n1",
    width=0.5,
    num_train=64,
    num_test=32,
    batch_size=16,
    epochs=1,
    lr=0.025,
    num_evals=2,
)
ON_DARTS = replace(QUICK, model="darts.n3", width=0.25, batch_size=8, num_train=16, num_test=8)


def make_trainer(config: Config = QUICK) -> Any:
    return run.make_trainer(config)


@pytest.fixture
def trainer():
    return make_trainer()


def drawn(policy):
    """Return the operations that Exp3 has drawn in its only round."""
    assert (policy.loss_sums != 0).sum(1).eq(1).all()
    return policy.loss_sums.argmax(1)


def test_a_round_updates_the_weights_of_the_drawn_path_alone(trainer):
    before = {name: parameter.detach().clone() for name, parameter in trainer.task.model.named_parameters()}
    trainer.training_step()
    choice = drawn(trainer.task.policy).tolist()
    changed = {name for name, parameter in trainer.task.model.named_parameters() if not torch.equal(parameter, before[name])}
    operations = {tuple(int(part) for part in name.split(".edges.")[1].split(".")[:2]) for name in changed if ".edges." in name}
    assert operations <= set(enumerate(choice))
    assert "network.linear.weight" in changed
    assert operations


def test_the_policy_learns_the_loss_of_the_path_on_the_other_half(trainer):
    task = trainer.task
    reference = make_trainer().task
    trainer.training_step()
    choice = drawn(task.policy)
    reference.load_state_dict(task.state_dict())
    with torch.no_grad(), reference.model.path({"cell": choice}):
        expected = float(reference.batch_loss(0, 1)["loss"])  # the weights after the step
    sums = torch.nn.functional.one_hot(choice, 5) * expected * 5  # π was uniform
    torch.testing.assert_close(task.policy.loss_sums, sums.float())


@pytest.mark.parametrize("name", TASKS)
def test_alpha_follows_the_policy_and_the_architecture_is_the_recommended_one(name):
    trainer = make_trainer(replace(QUICK, task=name))
    for _ in range(2):
        trainer.training_step()
    task = trainer.task
    if name != "random_search":
        torch.testing.assert_close(task.model.probabilities("cell"), task.policy.probabilities())
    assert task.model.choice()["cell"].tolist() == task.policy.recommend().tolist()


def test_an_evaluation_has_the_error_of_the_recommended_path(trainer):
    trainer.training_step()
    trainer.evaluate()
    error = trainer.curve.points[-1]["test_error"]
    reference = make_trainer().task
    reference.load_state_dict(trainer.task.state_dict())
    x, labels = next(reference.eval_batches(32))
    with torch.no_grad(), reference.model.path({"cell": reference.policy.recommend()}):
        logits = reference.model.train()(x)
    assert error == pytest.approx(100 * float((logits.argmax(1) != labels).float().mean()))


@pytest.mark.parametrize("name", TASKS)
def test_a_search_takes_the_darts_space_too(name):
    trainer = make_trainer(replace(ON_DARTS, task=name))
    trainer.training_step()
    task = trainer.task
    assert (task.policy.num_edges, task.policy.num_ops) == (28, 8)
    logits = task.policy.logits()
    torch.testing.assert_close(task.model.alphas["normal"], logits[:14])
    torch.testing.assert_close(task.model.alphas["reduction"], logits[14:])
    assert task.model.build(task.model.architecture())(task.training_batch(0)[0]).shape == (8, 10)


def test_a_loss_that_is_not_finite_ends_the_search(trainer):
    with torch.no_grad():
        trainer.task.model.network.linear.weight.fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"the loss of an architecture is not finite in step 0; use a lower lr \(0\.025\)"):
        trainer.training_step()


def test_options_that_have_no_meaning_are_errors():
    with pytest.raises(SpecError, match="policy_lr must be greater than 0; got 0"):
        make_task(replace(QUICK, options={"policy_lr": 0.0}))
    with pytest.raises(SpecError, match="RandomArchitectureSearch has no option 'policy_lr'"):
        make_task(replace(QUICK, task="random_search", options={"policy_lr": 0.1}))
    with pytest.raises(SpecError, match="has no option 'alpha_lr'"):
        make_task(replace(QUICK, options={"alpha_lr": 0.1}))
