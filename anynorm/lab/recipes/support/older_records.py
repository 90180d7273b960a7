"""Records of version 2 (anynorm 0.2): their settings, in the form of the present classes of settings.

Settings of version 2 were dictionaries: `train` had fields of `Config`, `options` those of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def upgrade_settings(recipe: str, settings: Json) -> Json:
    """Return the settings of a record of version 2 as `settings_json.from_json` reads them.

    Args:
        recipe: the name of the recipe.
        settings: the settings of the record.
    """
    values = dict(settings)
    if "devices_are" in values:
        values["simulate_devices"] = values.pop("devices_are") == "grad_accum_steps"
    if "train" in values:
        values = _with_training(values)
    if "pretraining" in values:
        values["pretraining"] = _with_training(values["pretraining"])["training"]
    return UPGRADES[recipe](values) if recipe in UPGRADES else values


def _with_training(values: Json) -> Json:
    """Return settings with `training` in the place of `train`, `options`, `batch_size` and others."""
    values = dict(values)
    config: Json = dict(values.pop("train"))
    config.update({name: values.pop(name) for name in ("options", "batch_size") if name in values})
    training: Json = {name: values.pop(name) for name in ("base_batch_size", "median_of_last") if name in values}
    return {**values, "training": training | {"config": config}}


def _name_task(values: Json) -> Json:
    """Return the settings of `bgn_adaptation`, whose options are those of CAN."""
    training = values["training"]
    return values | {"training": training | {"config": training["config"] | {"task": "can"}}}


def _label_norms(values: Json) -> Json:
    return values | {"norms": {norm: norm for norm in values["norms"]}}


def _name_divisions(values: Json) -> Json:
    return _rename(values, settings="divisions")


def _rename(values: Json, **names: str) -> Json:
    return {names.get(name, name): value for name, value in values.items()}


def _train_by_data(values: Json) -> Json:
    """Return settings in which each data set has a training of its own."""
    values = dict(values)
    training = values.pop("training")
    data = {}
    for name, entry in values["data"].items():
        config = _merge(training["config"], entry["train"] | {"options": entry["options"]})
        data[name] = {"training": training | {"config": config}, "devices": [entry["devices"], entry["batch_size"]]}
    return values | {"data": data}


def _train_by_network(values: Json) -> Json:
    """Return settings in which each network has a configuration of its own."""
    values = _rename(values, last="num_last_evals")
    config = values.pop("training")["config"]
    factory = values["networks"].get("SNGAN, many classes", {})
    if factory.get("data", "").startswith("anynorm.recipes."):  # the module was moved
        factory["data"] = factory["data"].replace("anynorm.recipes.support.", "anynorm.lab.recipes.sabn.")
    return values | {"networks": {name: _merge(config, changes) for name, changes in values["networks"].items()}}


def _train_by_domain(values: Json) -> Json:
    """Return settings with a training of their own for another domain."""
    values = dict(values)
    config = _merge(values["training"]["config"], values.pop("domain_train"))
    return values | {"domain_training": values["training"] | {"config": config}}


def _merge(config: Json, changes: Json) -> Json:
    """Return the fields of a configuration with changes of some, and of some options."""
    return config | changes | {"options": config.get("options", {}) | changes.get("options", {})}


def _optional_pictures(values: Json) -> Json:
    return values | {"pictures": values["pictures"] or None}


def _split_searches(values: Json) -> Json:
    """Return the settings of `sabn_search`, whose searches have a training of their own."""
    values = dict(values)
    training = values.pop("training")
    searches = {
        name: {
            "training": training | {"config": _merge(training["config"], search["settings"])},
            "accuracies": search["accuracies"],
        }
        for name, search in values["searches"].items()
    }
    methods = {name: {"norm": method["norm"], **method.get("options", {})} for name, method in values["methods"].items()}
    return values | {"searches": searches, "methods": methods}


def _nest_searches(values: Json) -> Json:
    """Return the settings of `bgn_search`, whose tables have a search and a training."""
    tables = {}
    for name, entry in values["tables"].items():
        table = dict(entry)
        table["training"] = {"config": table["training"] | {"batch_size": table.pop("batch_size")}}
        if "search" in table:
            config = table["search"] | {"batch_size": table.pop("search_batch_size")}
            spec = table.pop("search_norm")
            table["search"] = {
                "training": {"config": config},
                "norm": None if "{norm}" in spec else spec,
                "affine": not spec.endswith(".none"),
            }
        tables[name] = table
    policies = {name: options.get("lr") for name, options in values["policies"].items()}
    return values | {"tables": tables, "policies": policies}


def _drop_attacks(values: Json) -> Json:
    """Return settings without the names of the attacks, which follow from the options."""
    return {name: value for name, value in values.items() if name != "attacks"}


def _name_frozen_submodules(values: Json) -> Json:
    return values | {
        "variants": {name: _rename(variant, frozen="frozen_submodule") for name, variant in values["variants"].items()}
    }


UPGRADES: dict[str, Callable[[Json], Json]] = {
    "bgn_adaptation": _name_task,
    "bgn_adversarial": _drop_attacks,
    "bgn_search": _nest_searches,
    "hn_networks": _label_norms,
    "sabn_adversarial": _drop_attacks,
    "sabn_generation": _train_by_network,
    "sabn_search": _split_searches,
    "sabn_style": _optional_pictures,
    "shift_adaptation": _train_by_domain,
    "sn_batch_size": _name_divisions,
    "sn_detection": _name_frozen_submodules,
    "sn_segmentation": _train_by_data,
    "sn_style": _optional_pictures,
    "sn_video": _name_divisions,
    "xbn_detection": _name_frozen_submodules,
}
"""What else changed in the settings of a recipe."""
