"""Each operation on each model has the result and the counts that docs/interop.json states."""

import json

import pytest

from tests.interop.models import all_models
from tests.interop.operations import measure
from tests.interop.run import RESULTS

EXPECTED = {(row["package"], row["name"]): row for row in json.loads(RESULTS.read_text())["models"]}
# deprecated functions that models of other packages call, torch.meshgrid without indexing for instance
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def cases():
    for model in all_models():
        marks = [pytest.mark.sample] if model.is_in_sample else []
        yield pytest.param(model, id=f"{model.package}-{model.name}", marks=marks)


def without_rounding(row):
    """Return a row without the sizes of rounding errors, which differ between processors."""
    operations = {
        name: {key: value for key, value in outcome.items() if key != "change"}
        for name, outcome in row.get("operations", {}).items()
    }
    return row | {"operations": operations}


@pytest.mark.parametrize("model", list(cases()))
def test_every_operation_has_the_result_in_the_table(model):
    assert (model.package, model.name) in EXPECTED, "measure it: make interop-results"
    assert without_rounding(measure(model)) == without_rounding(EXPECTED[model.package, model.name])
