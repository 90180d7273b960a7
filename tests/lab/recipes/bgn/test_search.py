"""The recipe bgn_search: cells without the operation none, policies on a synthetic benchmark, and the published settings."""

from dataclasses import replace

import torch

from anynorm.lab.models.search.nasbench201.notation import OP_NAMES
from anynorm.lab.recipes.bgn.search.recipe import _derive, measure, play
from anynorm.lab.recipes.bgn.search.settings import MANAS_CELL, PRESETS
from anynorm.lab.recipes.support.runs import make_config, options_of
from anynorm.lab.recipes.support.synthetic_table import write_synthetic_table


def test_a_found_cell_has_the_strongest_operations_except_none():
    probabilities = torch.zeros(6, 5)
    probabilities[:, 0], probabilities[:, 1], probabilities[2, 3] = 0.5, 0.2, 0.3
    content = {"architecture": "unused", "operations": list(OP_NAMES), "probabilities": {"cell": probabilities.tolist()}}
    skip = "skip_connect"
    assert _derive(content) == f"|{skip}~0|+|{skip}~0|nor_conv_3x3~1|+|{skip}~0|{skip}~1|{skip}~2|"
    genotype = {"architecture": "a genotype", "operations": [], "probabilities": {"normal": []}}
    assert _derive(genotype) == "a genotype"


def test_least_squares_recommends_the_best_cell_of_a_synthetic_benchmark(tmp_path):
    settings = replace(PRESETS["desk"], benchmark=str(write_synthetic_table(tmp_path / "synthetic.npz")), rounds=400)
    best = 10 + 6 * 13  # six 3 × 3 convolutions
    assert play(settings, "least-squares", 0)["accuracy"] == best
    assert play(settings, "random", 0)["accuracy"] < best


def test_random_numbers_of_a_policy_depend_on_the_seed_alone(tmp_path):
    settings = PRESETS["smoke"]
    cell = {"part": "policies", "policy": "exp3", "seed": 1}
    first, second, other = (measure(settings, cell | {"seed": seed}, tmp_path)["accuracy"] for seed in (1, 1, 3))
    assert first == second != other


def test_the_desk_preset_searches_without_affine_and_trains_with_one():
    tables = PRESETS["desk"].tables
    assert tables["Table 3"].search.spec("GN", "gn:8") == "gn:8.none"
    assert tables["Table 4"].architecture == MANAS_CELL


def test_the_paper_preset_has_the_published_settings():
    for part, batch_size, groups in (("Table 3", 96, 256), ("Table 4", 64, 64)):
        table = PRESETS["paper"].tables[part]
        search, training = make_config(table.search.training.config), make_config(table.training.config)
        assert (search.model, search.epochs, search.batch_size, search.lr, search.weight_decay) == ("darts", 50, 64, 0.025, 3e-4)
        assert (training.batch_size, training.epochs, training.lr, training.cutout) == (batch_size, 600, 0.025, 16)
        assert (options_of(training).drop_path, options_of(training).auxiliary_weight) == (0.2, 0.4)
        assert table.norms["BGN"] == f"[1,{groups}]"
