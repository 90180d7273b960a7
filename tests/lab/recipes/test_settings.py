"""Settings of recipes: their JSON, and the division of samples over devices."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from anynorm.errors import DataError
from anynorm.lab.recipes.support.catalog import load_recipe, recipe_names
from anynorm.lab.recipes.support.norm_grid import NormGrid
from anynorm.lab.recipes.support.settings import Devices, Settings, Training, divide_samples
from anynorm.lab.recipes.support.settings_json import from_json, to_json
from anynorm.lab.training.config import Config


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    trainings: Mapping[str, Training]
    devices: Devices | None = None
    sizes: tuple[int, ...] = ()


TOY = ToySettings(seeds=2, trainings={"plain": Training(Config(lr=0.5), 32)}, devices=Devices(4, 2), sizes=(2, 4))


def test_settings_are_written_as_plain_json_and_read_as_the_same_values():
    values = to_json(TOY)
    assert values == {
        "seeds": 2,
        "trainings": {
            "plain": {"config": {"lr": 0.5}, "base_batch_size": 32, "median_of_last": 1, "samples_per_step": None, "lrs": {}}
        },
        "devices": [4, 2],
        "sizes": [2, 4],
    }
    assert from_json(ToySettings, json.loads(json.dumps(values))) == TOY


@pytest.mark.parametrize("name", recipe_names())
def test_the_settings_of_every_preset_survive_their_json(name):
    for settings in load_recipe(name).presets.values():
        values = to_json(settings)
        assert to_json(from_json(type(settings), json.loads(json.dumps(values)))) == values


def test_options_of_a_task_that_have_their_default_are_not_written():
    explicit = Config(task="adversarial", options={"train_attack": "pgd:4", "num_attacked": 300})
    assert to_json(explicit) == {"task": "adversarial", "options": {"num_attacked": 300}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": 2, "training": {}, "norm": "bn"}, "NormGrid has no field norm"),
        ({"seeds": 2, "training": {"config": {}}, "norms": ["bn"]}, "the JSON of NormGrid lacks a field: .*batch_sizes"),
        ({"seeds": 2, "training": 3}, "the JSON of Training must be an object; got 3"),
    ],
)
def test_json_of_other_settings_is_refused(values, message):
    with pytest.raises(DataError, match=message):
        from_json(NormGrid, values)


def test_samples_are_divided_over_devices_or_over_passes_of_one_device():
    config = Config()
    real, simulated = (divide_samples(config, Devices(4, 2), simulate=simulate) for simulate in (False, True))
    assert (real.devices, real.grad_accum_steps, real.batch_size, real.sync) == (4, 1, 2, False)
    assert (simulated.devices, simulated.grad_accum_steps, simulated.batch_size) == (1, 4, 2)
    real, simulated = (divide_samples(config, Devices(4, 2), simulate=simulate, sync=True) for simulate in (False, True))
    assert (real.devices, real.batch_size, real.sync) == (4, 2, True)
    assert (simulated.devices, simulated.grad_accum_steps, simulated.batch_size) == (1, 1, 8)
