"""Training that starts with one norm and ends with another."""

import pytest
import torch

import anynorm
from anynorm.lab.tasks.run import get_or_train, load_run, make_trainer, train
from anynorm.lab.training.config import Config
from anynorm.layers.morphing import MorphingNorm

CONFIG = Config(model="small", norm="gn:4", morph_from="bn", num_train=160, num_test=50, batch_size=16, epochs=1, num_evals=2)


class KilledError(Exception):
    """Raised in place of the end of a process."""


def norms(model):
    return [module for module in model.modules() if isinstance(module, anynorm.Norm)]


def test_training_starts_with_one_norm_and_ends_with_the_other():
    seen = []

    def callback(trainer):
        seen.append((trainer.step, round(trainer.morph.t, 3), {type(norm) for norm in norms(trainer.task)}))

    start = make_trainer(CONFIG)
    plain = make_trainer(Config(**{**vars(CONFIG), "norm": "bn", "morph_from": ""}))
    x = torch.randn(8, 1, 8, 8)
    torch.testing.assert_close(start.task.network(x), plain.task.network(x))
    trainer, failure = train(CONFIG, callback=callback)
    assert not failure
    assert seen == [(step, min(step / 8, 1.0), {MorphingNorm}) for step in range(1, 11)]
    assert {norm.spec for norm in norms(trainer.task)} == {"gn:4"}


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_run_that_is_killed_resumes_bit_for_bit_and_is_loaded_with_the_new_norms(tmp_path, ema_decay):
    config = Config(**{**vars(CONFIG), "ema_decay": ema_decay})
    whole, _ = train(config)

    def kill(trainer):
        if trainer.step == 5:
            raise KilledError

    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(KilledError):
        train(config, folder, seconds=-1, callback=kill)
    resumed, _ = train(config, folder, seconds=-1)
    with whole.evaluation_networks() as a, resumed.evaluation_networks() as b:
        assert {norm.spec for norm in norms(a)} == {"gn:4"}
        assert list(a.state_dict()) == list(b.state_dict())
        assert all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())
        expected = {name: value.clone() for name, value in a.state_dict().items()}
    record = get_or_train(config, tmp_path / "runs")
    assert record.done
    loaded = load_run(tmp_path / "runs", record.id)
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())


def test_a_run_that_starts_with_its_own_norm_is_trained_as_usual_and_has_its_own_id():
    same = Config(**{**vars(CONFIG), "morph_from": "gn:4"})
    assert make_trainer(same).morph is None
    assert len({CONFIG.id, same.id, Config(**{**vars(CONFIG), "morph_from": ""}).id}) == 3


@pytest.mark.parametrize(("changes", "message"), [({"morph_from": "xn"}, "xn"), ({"norm": "gn:4~bn"}, "gn:4~bn")])
def test_only_specs_can_morph(changes, message):
    with pytest.raises(anynorm.SpecError, match=message):
        Config(**{**vars(CONFIG), **changes})
