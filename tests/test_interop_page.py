"""docs/interop.md has what the committed results of `make interop-results` give."""

import copy
import json

from tools.interop import GUIDE, MARKER, PAGE, RESULTS, interop_counts, interop_page
from tools.results import insert

MEASURED = json.loads(RESULTS.read_text())


def test_the_page_and_the_guide_have_what_the_results_give():
    assert PAGE.read_text() == interop_page(MEASURED), "run: python -m tools.interop"
    assert GUIDE.read_text() == insert(interop_counts(MEASURED), GUIDE.read_text(), MARKER), "run: python -m tools.interop"


def test_the_models_are_as_many_as_promised():
    names = [(row["package"], row["name"]) for row in MEASURED["models"]]
    assert len(set(names)) == len(names)
    counts = {package: sum(1 for name, _ in names if name == package) for package in ("timm", "torchvision", "smp")}
    assert counts["timm"] >= 60
    assert counts["torchvision"] + sum(1 for name in MEASURED["missing"] if name.startswith("torchvision ")) >= 50
    assert counts["smp"] >= 6


def test_failures_and_refusals_are_shown_with_their_reasons():
    results = copy.deepcopy(MEASURED)
    row = next(row for row in results["models"] if row["name"] == "resnet18")
    row["operations"]["hn"] = {"result": "failed", "reason": "ValueError: a | b"}
    row["operations"]["bn"] = {"result": "refused", "reason": "This ResNet has none."}
    row["operations"]["fold"] |= {"count": 19, "notes": {"not folded: why": 1}}
    page = interop_page(results)
    assert "| `resnet18` | 11.2 M | 3 × 64 × 64 | 20 | 0 | – [1] | **✗** [2] | ✓ | 8 | 19 of 20 [3] | ✓ | ✓ |" in page
    assert "1. This model has none.\n2. ValueError: a | b\n3. not folded: why\n" in page
    assert interop_counts(results) != interop_counts(MEASURED)
    row["operations"]["hn"]["reason"] = "undo left other values"
    assert "| ✓ | **✗** |\n" in interop_page(results)


def test_a_model_that_does_not_run_is_shown_with_its_reason():
    results = {
        "versions": {"torch": "1"},
        "missing": ["smp b"],
        "models": [{"package": "timm", "name": "a", "error": "RuntimeError: no"}],
    }
    page = interop_page(results)
    assert "| `a` | the model itself does not run [1] | " in page
    assert "1. RuntimeError: no\n" in page
    assert "Not measured yet: `smp b`." in page
