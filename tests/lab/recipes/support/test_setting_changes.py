"""Settings of a recipe are changed by paths on the command line, and keep a record of their own."""

import json
from dataclasses import dataclass, field, replace

import pytest
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.lab.recipes.support.catalog import load_recipe
from anynorm.lab.recipes.support.setting_changes import with_changes
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.recipes.support.settings_json import to_json

RECIPE = load_recipe("hn_sn")


def changed(*changes, recipe=RECIPE, preset="night"):
    recipe, name = with_changes(recipe, preset, changes)
    return recipe.settings(name)


def test_a_path_names_fields_entries_and_options():
    night = RECIPE.settings("night")
    settings = changed(
        "training.config.lr=0.03", "norms=bn,gn:8", "training.lrs.bn=1/8", "batch_sizes=8", "min_train_accuracy=12"
    )
    assert settings.training.config == replace(night.training.config, lr=0.03)
    assert (settings.norms, settings.training.lrs["bn"], settings.batch_sizes) == (("bn", "gn:8"), 0.125, (8,))
    assert settings.min_train_accuracy == 12.0
    averaged = changed("training.config.options.averaged_samples=7")
    assert averaged.training.config.options == {"averaged_samples": 7}
    assert to_json(changed()) == to_json(night)


def test_the_groups_of_bgn_are_chosen_by_a_word():
    settings = changed("groups=auto", recipe=load_recipe("bgn_batch_size"), preset="desk")
    assert settings.groups.candidates == (256, 64, 16, 4, 1)
    assert changed("groups=8,2", recipe=load_recipe("bgn_batch_size"), preset="desk").groups.candidates == (8, 2)


@dataclass(frozen=True, kw_only=True)
class Nested(Settings):
    parts: dict[str, Settings] = field(default_factory=lambda: {"a": Settings(seeds=1)})


def test_entries_of_mappings_have_parts():
    recipe = replace(RECIPE, presets={"desk": Nested(seeds=2)})
    assert changed("parts.a.seeds=5", recipe=recipe, preset="desk").parts == {"a": Settings(seeds=5)}
    with pytest.raises(anynorm.DataError, match=r"--set parts\.b\.seeds=5: unknown entry 'b'\. Usable: a"):
        changed("parts.b.seeds=5", recipe=recipe, preset="desk")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lr", r"--set must be PATH=VALUE, such as training\.config\.lr=0\.03; got 'lr'"),
        ("traning.config.lr=1", r"--set traning\.config\.lr=1: unknown setting 'traning'\. Did you mean training"),
        ("training.config.lrate=1", r"unknown setting 'lrate'\. Usable: data model norm"),
        ("training.config.lr=fast", r"the value must be a number; got 'fast'"),
        ("training.config=1", r"the setting has parts; name one of them after a dot: data model"),
        ("seeds.x=1", r"'x' is not a part of 8"),
    ],
)
def test_a_wrong_change_is_named(change, message):
    with pytest.raises(anynorm.DataError, match=message):
        changed(change)


def test_the_command_measures_changed_settings_in_a_record_of_their_own(tmp_path):
    arguments = ["reproduce", "hn_sn", "--preset", "smoke", "--json", "--processes", "1", "--records", str(tmp_path)]
    changes = ["--runs", str(tmp_path / "runs"), "--set", "batch_sizes=32", "--set", "seeds=1"]
    result = CliRunner().invoke(app, [*arguments, *changes])
    assert "exploratory" in json.loads(result.stdout)["finding"]
    (path,) = tmp_path.glob("*.jsonl")
    assert path.name.startswith("hn_sn.smoke-")
    assert json.loads(path.read_text().splitlines()[0])["settings"]["batch_sizes"] == [32]
