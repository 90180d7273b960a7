"""docs/interop.md has what the committed results of `make interop-results` give."""

import copy
import json
import re

from tools.interop import GUIDE, MARKER, PAGE, RESULTS, interop_counts, interop_page
from tools.results import insert

MEASURED = json.loads(RESULTS.read_text())


def test_the_page_and_the_guide_have_what_the_results_give():
    assert PAGE.read_text() == interop_page(MEASURED), "run: python -m tools.interop"
    assert GUIDE.read_text() == insert(interop_counts(MEASURED), GUIDE.read_text(), MARKER), "run: python -m tools.interop"


def test_the_models_are_as_many_as_promised():
    names = [(row["package"], row["name"]) for row in MEASURED["models"]]
    assert len(set(names)) == len(names)
    counts = {
        package: sum(1 for name, _ in names if name == package) for package in ("timm", "torchvision", "smp", "transformers")
    }
    assert counts["timm"] >= 150
    assert counts["torchvision"] + sum(1 for name in MEASURED["missing"] if name.startswith("torchvision ")) >= 50
    assert counts["smp"] >= 6
    assert counts["transformers"] >= 5


def test_failures_and_refusals_are_shown_with_their_reasons():
    results = copy.deepcopy(MEASURED)
    row = next(row for row in results["models"] if row["name"] == "resnet18")
    row["operations"]["hn"] = {"result": "failed", "reason": "ValueError: a | b"}
    row["operations"]["bn"] = {"result": "refused", "reason": "This ResNet has none."}
    row["operations"]["fold"] |= {"count": 19, "notes": {"not folded: why": 1}}
    page = interop_page(results)
    links = [f'[<a href="#reason-{number}">{number}</a>]' for number in (1, 2, 3, 4)]
    cells = f"– {links[0]} | **✗** {links[1]} | ✓ | 8 | 19 of 20 {links[2]} | 17 of 17 | – {links[3]} | ✓ | ✓"
    assert f"| `resnet18` | 11.2 M | 20 | 0 | {cells} |" in page
    reasons = ["This model has none.", "ValueError: a | b.", "Not folded: why."]
    reasons += ["This model has no LayerNorm over the channels of each position."]
    assert "\n".join(f'{k}. <a id="reason-{k}"></a>{text}' for k, text in enumerate(reasons, 1)) in page
    assert "None of the " in interop_counts(MEASURED)
    assert "has the result of each. 1 of the " in interop_counts(results)
    row["operations"]["hn"]["reason"] = "undo left other values"
    assert "| ✓ | **✗** |\n" in interop_page(results)


def test_a_model_that_does_not_run_is_shown_with_its_reason():
    results = {
        "versions": {"torch": "1"},
        "missing": ["smp b"],
        "models": [{"package": "timm", "name": "a", "error": "RuntimeError: no"}],
    }
    page = interop_page(results)
    assert '| `a` | the model itself does not run [<a href="#reason-1">1</a>] | ' in page
    assert '1. <a id="reason-1"></a>RuntimeError: no.\n' in page
    assert "Not measured yet: `smp b`." in page


def test_norms_that_do_not_run_are_the_reason_why_they_are_not_recalibrated():
    row = next(line for line in interop_page(MEASURED).splitlines() if line.startswith("| `PSPNet-densenet121` |"))
    number = re.search(r'\| 43 of 125 \[<a href="#reason-(\d+)">', row)[1]
    assert f'{number}. <a id="reason-{number}"></a>These norms do not run on the example' in interop_page(MEASURED)


def test_inputs_are_noted_if_they_are_not_the_usual_ones():
    page = interop_page(MEASURED)
    assert "| `halonet26t` (3 × 256 × 256) | " in page
    assert "| `resnet18` | " in page
    assert "needs more than one value" not in page
