"""Values of test items in records."""

import json

import numpy as np
import pytest

from anynorm.lab.training.items import MAX_ITEMS, group_means, pack_items, pseudo_values, split_items, unpack_items
from tests.lab.jackknife import check_pseudo_values


@pytest.mark.parametrize("values", [[True, False, True, True], [0.5, 2.0, -1.25]])
def test_packed_items_are_those_of_the_metric(values):
    packed = json.loads(json.dumps(pack_items(values)))
    expected = [100.0 * value for value in values] if isinstance(values[0], bool) else values
    assert unpack_items(packed).tolist() == expected


def test_many_numbers_are_averaged_in_groups_of_neighbors_and_bits_are_not():
    values = np.random.default_rng(0).normal(size=600)
    packed = unpack_items(pack_items(values.tolist()))
    assert len(packed) == MAX_ITEMS
    assert packed == pytest.approx(values.reshape(MAX_ITEMS, 3).mean(1), rel=1e-5)
    assert len(unpack_items(pack_items([True] * 600))) == 600


@pytest.mark.parametrize(("count", "num_groups"), [(7, 3), (600, 200), (5, 200), (1, 2), (0, 3)])
def test_every_item_is_in_one_group(count, num_groups):
    groups = split_items(count, num_groups)
    assert [index for group in groups for index in group] == list(range(count))
    assert len(groups) == min(count, num_groups)
    assert max(map(len, groups), default=0) - min(map(len, groups), default=0) <= 1


def test_groups_have_the_standard_error_of_their_items():
    values = np.random.default_rng(1).normal(size=2000)
    groups = group_means(values.tolist())
    assert np.mean(groups) == pytest.approx(np.mean(values))
    assert np.std(groups, ddof=1) / len(groups) ** 0.5 == pytest.approx(np.std(values, ddof=1) / 2000**0.5, rel=0.15)


def test_pseudo_values_of_a_ratio_of_sums_have_its_standard_error():
    x, y = np.random.default_rng(2).uniform(size=(2, 50))
    rest = [(x.sum() - a) / (y.sum() - b) for a, b in zip(x, y, strict=True)]
    values = pseudo_values(x.sum() / y.sum(), rest)
    check_pseudo_values(values, x.sum() / y.sum(), lambda chosen: x[chosen].sum() / y[chosen].sum())
