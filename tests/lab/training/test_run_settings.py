"""Settings of a run that recipes rely on: evaluations, test images, early stopping, XBN layouts and schedules."""

from dataclasses import replace

import pytest
import torch

import anynorm
from anynorm.errors import DataError, SpecError
from anynorm.lab.data import load_dataset
from anynorm.lab.models import build_model
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.tasks.run import load_run, make_trainer, run, train
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.schedules import Step


@pytest.mark.parametrize(
    ("num_train", "num_evals", "steps"), [(64, 1, [4]), (64, 2, [2, 4]), (80, 2, [3, 5]), (48, 20, [1, 2, 3])]
)
def test_the_test_set_is_evaluated_as_often_as_the_configuration_says(num_train, num_evals, steps):
    trainer, failure = train(Config(num_train=num_train, batch_size=16, epochs=1, num_test=30, num_evals=num_evals))
    assert not failure
    assert [point["step"] for point in trainer.curve.points] == steps


def test_a_run_with_stop_epoch_equals_the_start_of_the_complete_run():
    complete = make_trainer(Config(num_train=64, epochs=3, num_test=30))
    for _ in range(complete.steps_per_epoch):
        complete.training_step()
    part, _ = train(Config(num_train=64, epochs=3, num_test=30, stop_epoch=1))
    assert part.step == complete.step
    for value, expected in zip(part.task.state_dict().values(), complete.task.state_dict().values(), strict=True):
        assert torch.equal(value, expected)
    with pytest.raises(SpecError, match=r"stop_epoch must be between 1 and epochs=3; got 4\."):
        Config(epochs=3, stop_epoch=4)


def test_a_task_is_trained_after_the_last_step_of_its_run_and_outside_of_training(tmp_path, monkeypatch):
    config = Config(num_train=64, epochs=3, num_test=30, stop_epoch=1)
    assert make_task(config).is_trained
    values = []
    evaluate = Classification.evaluate

    def record_and_evaluate(task):
        values.append(task.is_trained)
        return evaluate(task)

    monkeypatch.setattr(Classification, "evaluate", record_and_evaluate)
    run(config, tmp_path, callback=lambda trainer: values.append(trainer.task.is_trained))
    assert values == [False, False, True, True]  # in the evaluation after the first step, after it; the same for the last step
    assert load_run(tmp_path, config.id).is_trained


def test_num_test_limits_the_number_of_test_images():
    task = make_trainer(Config(num_train=64, epochs=1, num_test=30)).task
    assert [len(labels) for _, labels in task.eval_batches(20)] == [20, 10]
    with pytest.raises(DataError, match=r"num_test must be between 1 and the 449 images of the data set; got 100000\."):
        make_trainer(Config(num_train=64, epochs=1, num_test=100000))


def test_settings_added_later_do_not_change_the_ids_of_older_runs():
    plain = Config()
    assert replace(plain, num_evals=20, num_test=None, stop_epoch=None).id == plain.id
    assert len({plain.id, replace(plain, num_evals=1).id, replace(plain, num_test=10).id, replace(plain, stop_epoch=1).id}) == 4


@pytest.mark.parametrize(
    ("norms", "num_replaced"),
    [("xbn=gn:4", 8), ("xbn.p1=gn:4", 8), ("xbn.d2=gn:4", 4), ("xbn.p3.d4=gn:4", 2), ("xbn.d8=gn:4", 1)],
)
def test_xbn_blocks_are_chosen_by_position_and_interval(norms, num_replaced):
    model = Layout.parse(norms, 16).apply(build_model("resnet26", load_dataset("digits").shape))
    layers = [module for module in model.modules() if isinstance(module, anynorm.Norm)]
    assert sum(layer.spec == "gn:4" for layer in layers) == num_replaced


def test_a_part_of_a_network_has_a_layout_of_its_own():
    specs = parts_of("sn;2=gn:4;2.0=xbn=in;3=hn~bn")
    assert specs["0.1"] == specs["1.0.bn1"] == "sn"
    assert [specs[f"2.1.bn{k}"] for k in (1, 2, 3)] == ["gn:4"] * 3
    assert [specs[f"2.0.bn{k}"] for k in (1, 2, 3)] == ["gn:4", "in", "gn:4"]
    assert [specs[f"3.0.bn{k}"] for k in (1, 2, 3)] == ["hn", "bn", "hn"]
    assert set(parts_of("2=gn:4").values()) == {"bn", "gn:4"}


def parts_of(norms):
    model = Layout.parse(norms, 16).apply(build_model("resnet26", load_dataset("digits").shape))
    return {name: module.spec for name, module in model.named_modules() if isinstance(module, anynorm.Norm)}


def test_a_layout_with_an_unknown_submodule_or_without_a_name_is_refused():
    with pytest.raises(SpecError, match=r"Sequential has no submodule 'heads'\. Submodules with norms: 0 1 2 3 4\."):
        parts_of("bn;heads=gn:4")
    with pytest.raises(SpecError, match=r"must be LAYOUT;SUBMODULE=LAYOUT;…; got 'bn;gn:4'\. Usable: sn;heads=gn:8"):
        Layout.parse("bn;gn:4")
    with pytest.raises(SpecError, match="unknown norm 'fn'"):
        Layout.parse("bn;heads=fn")


def test_a_position_outside_the_block_is_refused():
    with pytest.raises(SpecError, match=r"position P in 1 to 3 .*; got 'xbn\.p4=gn:4'\. Usable: xbn=gn:64"):
        Layout.parse("xbn.p4=gn:4", 8)


def test_schedules_reduce_the_learning_rate_where_their_names_say():
    config = Config(schedule=Step((0.3, 0.6, 0.9)), lr=1.0)
    assert [round(config.lr_at(part), 6) for part in (0.0, 0.29, 0.3, 0.6, 0.95)] == [1.0, 1.0, 0.1, 0.01, 0.001]
    quarters = replace(config, schedule=Step((0.25, 0.5, 0.75)))
    assert [round(quarters.lr_at(part), 6) for part in (0.2, 0.25, 0.5, 0.75)] == [1.0, 0.1, 0.01, 0.001]
