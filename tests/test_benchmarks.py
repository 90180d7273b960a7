"""The benchmarks: README.md has what the committed results give, and targets and counts are computed correctly."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

FOLDER = Path(__file__).parents[1] / "benchmarks"
ENVIRONMENT = {"command": "c", "hardware": "h", "python": "3", "torch": "2", "kernels": {"cpu": "k", "reference": "r"}}


@pytest.fixture
def load(monkeypatch):
    """Import a script as `python benchmarks/NAME.py` does."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


def layer_row(shape, threads=1, saved=1.0, **seconds):
    times = {"nn.BatchNorm": 3.0, "nn.GroupNorm": 1.0, "published SN": 24.0, "traffic": 0.8, "copy": 0.1} | seconds
    row = {
        "shape": shape,
        "threads": threads,
        "megabytes": torch.Size(shape).numel() * 4e-6,
        "saved": dict.fromkeys(seconds, saved),
    }
    return row | {"seconds": {"forward + backward": times, "inference": times}}


def stream_row(name, workers):
    peaks = [150.0] if workers else []
    ratios = dict.fromkeys(("ratio", "median_ratio", "cpu_ratio"), 0.95)
    return {"name": name, "threads": 1, "workers": workers, "images_per_second": 10.0, "worker_megabytes": peaks, **ratios}


def conditional_row(seconds):
    counts = dict.fromkeys(seconds, 3_000_000)
    return {"classes": 10, "seconds": seconds, "update_seconds": seconds, "saved_bytes": counts, "parameters": counts}


def make_results(rows=None, extra=0.25, sn=0.9):
    formats = [{"shape": [2, 8, 4, 4], "threads": 1, "dtype": "bfloat16", "memory_format": "channels_last"}]
    formats[0]["seconds"] = {"nn.BatchNorm": 2.0, "sn": 1.0}
    rows = rows or [layer_row([8, 64, 56, 56], bn=1.0, sn=1.0), layer_row([4, 64, 8, 8], bn=2.0, sn=4.0)]
    peak = {"shape": [32, 64, 56, 56], "megabytes": {"nn.BatchNorm": 245.0}}
    steps = [
        {"network": "resnet50", "batch_size": n, "mode": "training step", "seconds": {"nn.BatchNorm2d": 1.0, "sn": ratio}}
        for n, ratio in ((2, sn), (8, 0.8))
    ]
    times = {"torch": 1.0, "bn": 0.3, "sn": 0.6}
    blocks = [{"shape": [8, 64, 56, 56], "threads": 1, "seconds": {"norm + ReLU": times, "norm + add + ReLU": times}}]
    blocks[0]["saved"] = {"bn": 1.0, "sn": 1.1}
    compiled = [{"shape": [8, 64, 56, 56], "threads": 2, "seconds": {"norm + ReLU": times}}]
    results = {
        "layers": {"specs": ["bn", "sn"], "rows": rows, "formats": formats, "peak": peak},
        "fused": {"specs": ["bn", "sn"], "rows": blocks, "compiled": compiled},
        "model": {"threads": 2, "norms": ["nn.BatchNorm2d", "sn"], "rows": steps},
        "startup": {"seconds": {"torch": 1.0, "anynorm": 1.0 + extra}},
        "reference": {"shape": [8, 64, 16, 16], "rows": [{"spec": "bn", "saved": 1.0, "eager": [5, 10], "compiled": [2, 4]}]},
        "baselines": {"shapes": [[2, 8, 4, 4]], "rows": [{"norm": "brn", "ratios": [0.5], "saved": [1.0]}]},
        "stream": {
            "images": 100,
            "batch_size": 32,
            "rows": [stream_row("memory, 1 thread", None), stream_row("stream, 1 worker, 1 thread", 1)],
        },
        "conditional": {
            "batch_size": 2,
            "width": 0.5,
            "base": "nn.X",
            "rows": [conditional_row({"nn.X": 0.2, "ccbn": 0.2, "sabn": 0.1})],
        },
        "deployment": {
            "base": "nn.X",
            "variants": ["nn.X", "folded", "gn:8"],
            "versions": {"torch": "2"},
            "rows": [{"batch_size": 1, "seconds": {"eager": {"nn.X": 0.2, "folded": 0.1, "gn:8": 0.3}}}],
            "quantization": {"num_images": 100, "rows": {"int8": {"accuracy": 91.25, "agreement": 98.5}}},
        },
    }
    return {name: ENVIRONMENT | values for name, values in results.items()}


def test_the_page_has_what_the_committed_results_give(load):
    report = load("report")
    page = (FOLDER / "README.md").read_text()
    content = report.report(report.read_results(FOLDER / "results"))
    assert report.insert(content, page) == page, "run python benchmarks/report.py"


@pytest.mark.parametrize("name", ["conditional", "deployment"])
def test_a_guide_has_what_the_committed_results_give(load, name):
    report = load("report")
    page = report.GUIDES[name].read_text()
    content = report.guide_report(name, report.read_results(FOLDER / "results"))
    assert report.insert(content, page) == page, "run python benchmarks/report.py"


def test_the_questions_have_what_the_committed_results_give(load):
    report = load("report")
    page = report.QUESTIONS.read_text()
    content = report.summary_section(report.read_results(FOLDER / "results"))
    assert report.insert(content, page) == page, "run python benchmarks/report.py"


def test_the_summary_has_the_median_and_the_largest_ratio_of_each_kind_of_input(load):
    rows = [
        layer_row([8, 64, 56, 56], bn=1.0, sn=6.0),
        layer_row([8, 64, 14, 14], bn=2.0, sn=6.0),
        layer_row([256, 512], bn=6.0, sn=1.5),
    ]
    text = load("summary").summary_section(make_results(rows))
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    assert "| 0.50 (0.67) |" in lines["layer, training, maps of more than 7 × 7"]
    assert "| **2.00 (2.00)** |" in lines["layer, training, maps of more than 7 × 7"]
    assert "| **2.00 (2.00)** |" in lines["layer, training, vectors (n, c)"]
    assert "| 0.50 (0.50) |" in lines["layer, training, vectors (n, c)"]
    assert "layer, training, maps of 7 × 7" not in lines


def test_a_page_without_markers_raises(load):
    with pytest.raises(ValueError, match="must have a line <!-- results -->"):
        load("report").insert("text", "# Benchmarks\n")


def test_the_report_starts_with_all_targets_and_has_a_section_per_file(load):
    report = load("report")
    text = report.report(make_results())
    assert text.startswith("## In short\n\nTime relative to nn.BatchNorm")
    assert (
        "**10 of 10 targets are met.** Values are ratios of times, unless a unit is given; below 1 is faster.\n\n| quantity |"
        in text
    )
    assert re.findall(r"^## (.*)", text, re.M) == ["In short", *(title for title, _ in report.SECTIONS.values())]
    assert "| ResNet-50 step, sn / nn.BatchNorm2d, batch 2 and 8 | 0.850 |  | 0.900 | ≤ 0.95 | met |" in text
    assert "| resnet50 | 2 | training step | 1000.0 | 0.90 |" in text
    assert "A step with `sabn`, relative to one with `ccbn`: 0.50 with 10 classes." in text
    assert "| 10 | `sabn@10` | 100 | 0.50 | 100.0 | 3.00 | 3 |" in text
    assert "| 2×8×4×4 | bfloat16 | channels_last | 1 | 2000.000 | 0.50 |" in text
    assert "| 1 | eager | 200.00 | 0.50 | 1.50 | 3.00 |" in text
    assert "int8 on 100 test images:" in text
    assert "| int8 | 91.25 | 98.50 |" in text
    assert report.report({}) == ""


def test_targets_have_the_median_and_the_worst_of_what_counts(load):
    vectors = layer_row([256, 512], threads=2, saved=1.2, bn=1.0, sn=6.0)
    rows = [layer_row([8, 64, 56, 56], bn=1.0, sn=2.0), layer_row([4, 64, 8, 8], bn=2.0, sn=6.0), vectors]
    results = make_results(rows, extra=0.4, sn=0.97)
    targets = {target.name: target for target in load("targets").all_targets(results)}
    speed = targets["ours / nn.BatchNorm"]
    assert sorted(speed.values) == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2.0])
    assert (speed.median, speed.worst, speed.is_met) == (pytest.approx(0.5), 2.0, False)
    assert targets["ours / nn.GroupNorm"].worst == 6.0
    assert sorted(targets["our sn / published SN"].values) == pytest.approx([1 / 12, 1 / 4])
    assert targets["ours / memory traffic, x of 6 MB and more"].values == [1.25, 2.5]
    assert targets["ours / nn.BatchNorm2d at 4×64×8×8"].values == pytest.approx([2 / 3, 2.0])
    assert targets["bytes saved for backward / bytes of x"].worst == 1.2
    assert not any(target.is_met for name, target in targets.items() if "step" in name or "extra" in name)
    lines = [str(target) for target in targets.values()]
    assert "missed  ours / nn.BatchNorm: median 0.500 (target ≤ 0.4), worst 2.000 (target ≤ 1.0)" in lines
    assert lines[-3].endswith("against torch alone (s): measured 0.400 (target ≤ 0.3)")


def test_an_aim_has_one_line_per_number_of_threads_with_both_bounds(load):
    results = make_results([layer_row([8, 64, 56, 56], bn=0.9, sn=2.4), layer_row([64, 128], threads=2, bn=6.0)])
    steps = [
        ("mobilenetv2", "training step", 1, 0.7),
        ("mobilenetv2", "training step", 1, 0.8),
        ("resnet20", "inference", 2, 0.9),
    ]
    results["model"]["rows"] = [
        {
            "network": name,
            "batch_size": 2,
            "mode": mode,
            "threads": threads,
            "seconds": {"nn.BatchNorm2d": 2.0, "sn fused": 2.0 * ratio, "sn": 9.0},
        }
        for name, mode, threads, ratio in steps
    ]
    aims = load("aims").all_aims(results)
    lines = [str(aim) for aim in aims]
    assert len(set(lines)) == len(lines) == 2 * len(load("aims").RULES)
    assert lines[0] == ("layer / nn.BatchNorm, x of 0.1 MB and more, median, 1 thread: 0.550 (AMD / Intel ≤ 0.4 / 0.65): met")
    assert lines[1].endswith("median, 2 threads: – (AMD / Intel ≤ 0.4 / 0.65): not measured")
    found = {(aim.name, aim.statistic, aim.threads): aim for aim in aims}
    assert found["layer / nn.BatchNorm, x of 0.1 MB and more", "worst", 1].measured == pytest.approx(0.8)
    assert found["layer / nn.BatchNorm at 4×64×8×8, 64×128, 256×512", "worst", 2].verdict == "missed by 1.000"
    assert found["inference of a layer at the same shapes / nn.BatchNorm", "worst", 2].verdict == "missed by 0.800"
    assert found["norm + ReLU, fused / nn.BatchNorm2d + nn.ReLU", "median", 1].measured == pytest.approx(0.45)
    assert found["norm + add + ReLU, fused / torch", "median", 1].is_met
    assert found["compiled norm + ReLU / compiled torch", "median", 2].verdict == "missed by 0.150"
    assert found["bytes saved by norm + ReLU / bytes of x", "worst", 1].verdict == "missed by 0.050"
    assert found["MobileNetV2 step, fused / nn.BatchNorm2d", "worst", 1].verdict == "missed by 0.020"
    assert found["ResNet-50 step, fused / nn.BatchNorm2d", "worst", 1].measured is None
    assert found["inference of networks, fused / nn.BatchNorm2d", "worst", 2].is_met
    results["layers"]["hardware"] = "AMD EPYC, 2 cores"
    assert load("aims").all_aims(results)[0].verdict == "missed by 0.150"


def test_the_page_lists_the_largest_ratios_of_missed_aims_with_the_cause(load):
    results = make_results([layer_row([8, 64, 56, 56], bn=0.9, sn=9.0), layer_row([64, 128], bn=2.7, sn=3.6)])
    text = load("report").report(results)
    cause = load("causes").CAUSES["layer / nn.BatchNorm, x of 0.1 MB and more", "worst"]
    shapes = "layer / nn.BatchNorm at 4×64×8×8, 64×128, 256×512, worst"
    assert (
        "- *layer / nn.BatchNorm, x of 0.1 MB and more, worst*: ratios above the bound with 1 thread: 1 of 2, the largest "
        f"3.00 (`sn` at 8×64×56×56). {cause}\n"
    ) in text
    assert f"- *{shapes}*: ratios above the bound with 1 thread: 1 of 2, the largest 1.20 (`sn` at 64×128). " in text
    assert "- *norm + ReLU, fused / nn.BatchNorm2d + nn.ReLU, median*" not in text  # met


def test_every_cause_is_that_of_an_aim(load):
    assert set(load("causes").CAUSES) <= {(rule.name, rule.statistic) for rule in load("aims").RULES}


def test_the_page_counts_aims_that_are_met_and_that_are_not_measured(load):
    text = load("report").report(make_results())
    assert re.search(r"\*\*\d+ of \d+ aims are met\*\*, and \d+ are not measured yet\.", text)
    assert "| norm + ReLU, fused / nn.BatchNorm2d + nn.ReLU, median | 1 | 0.450 | ≤ 0.35 / 0.5 | met |" in text
    assert "| bytes saved by norm + ReLU / bytes of x, worst | 1 | 1.100 | ≤ 1.05 / 1.05 | **missed by 0.050** |" in text
    assert "| 8×64×56×56 | 2 | 1000.000 | 0.30 | 0.60 |" in text


def test_networks_are_fused_if_anynorm_can_do_it(load, monkeypatch):
    model = load("model")
    calls = []
    monkeypatch.setattr(model, "fuse", lambda network, example: calls.append(example.shape))
    model.network("resnet20", "sn fused")
    model.network("resnet20", "sn")
    assert calls == [(2, 3, 32, 32)]
    monkeypatch.setattr(model.anynorm, "__all__", ["make", "fuse"])
    assert set(model.FUSED_NORMS) <= set(model.usable_norms())
    monkeypatch.setattr(model.anynorm, "__all__", ["make"])
    assert not set(model.FUSED_NORMS) & set(model.usable_norms())


def test_saved_bytes_are_those_of_each_storage_without_parameters(load):
    saved_bytes = load("measurement").saved_bytes
    x = torch.randn(4, 8)
    assert saved_bytes(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), x) == 2 * 4 * 8 * 4
    assert saved_bytes(nn.Identity(), x) == 0


def test_options_that_say_where_to_write_are_no_part_of_the_command(load, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks/layers.py", "--minutes", "1", "--json", "a.json", "--plot=b.png", "--compile"])
    assert load("measurement").environment()["command"] == "python benchmarks/layers.py --minutes 1 --compile"


def test_passes_over_x_are_operators_without_views_and_without_small_tensors(load):
    count, x = load("reference").count_operators, torch.randn(4, 8, 3)
    assert count(lambda: x.mul(2).add(1), x.numel()) == 2
    assert count(lambda: x.reshape(8, 12).t().detach().unsqueeze(0), x.numel()) == 0
    assert count(lambda: x.transpose(0, 1).reshape(8, 12), x.numel()) == 1  # a copy
    assert count(lambda: x.mean((1, 2)).exp().sum(), x.numel()) == 1
