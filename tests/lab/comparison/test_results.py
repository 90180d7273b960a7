"""Results of a comparison, rankings and the sentences of a recommendation, and the table."""

import pytest

from anynorm.lab.comparison.ranking import rank
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.table import Column, make_table
from anynorm.lab.training.record import LayerShift, RunRecord
from anynorm.lab.training.result import Result


def make_record(norm, error=2.5, batch_size=2, seed=0, **values):
    """A record with a test error; the run failed if the error is None."""
    config = {"norm": norm, "batch_size": batch_size, "seed": seed}
    return RunRecord("", config, "failed" if error is None else "done", metrics={"test_error": error}, **values)


def make_records(batch_size=2, **errors):
    """Records of norms (keyword `gn_4` for gn:4) with one test error per seed; None where the run failed."""
    return [
        make_record(norm.replace("_", ":"), error, batch_size, seed)
        for norm, by_seed in errors.items()
        for seed, error in enumerate(by_seed)
    ]


def sentence(**errors):
    return rank(make_records(**errors), 2).sentence()


def test_a_result_counts_the_failed_runs_of_a_cell():
    results = Results(make_records(bn=(10.0, 12.0), sn=(10.0, None)), ["bn", "sn"], [2])
    assert results.result("bn", 2) == Result(11.0, 2**0.5, 2)
    assert results.result("sn", 2) == Result(10.0, None, 1, num_failed=1)
    assert results.result("bn", 32) == Result(None, None, 0)


def test_norms_that_the_seeds_do_not_separate_are_recommended_together():
    bad, good = (50.0, 52.0, 51.0), (20.0, 21.0, 22.5)
    assert sentence(bn=bad, gn_4=good, sn=(21.0, 20.0, 23.0)) == (
        "At batch size 2 use gn:4 or sn (21.2 to 21.3 % error; 3 seeds do not separate them); worse: bn (51.0 %)."
    )
    assert sentence(bn=bad, gn_4=good) == "At batch size 2 use gn:4 (21.2 % error); worse: bn (51.0 %)."
    assert sentence(bn=bad, sn=(21.0, 20.0, 23.0), gn_4=good, hn=(21.0, 20.1, 23.2)) == (
        "At batch size 2 use sn, gn:4 or hn (21.2 to 21.4 % error; 3 seeds do not separate them); worse: bn (51.0 %)."
    )


def test_a_small_difference_is_not_called_worse_even_if_it_is_not_chance():
    errors = {"bn": (2.00, 2.01, 2.02), "sn": (2.30, 2.31, 2.33)}
    assert rank(make_records(**errors), 2).worse == []
    assert rank(make_records(**errors | {"sn": (2.60, 2.61, 2.63)}), 2).worse == ["sn"]


def test_bn_is_named_with_the_norms_that_are_not_better():
    close, far = {"bn": (2.0, 2.5, 2.2), "sn": (1.9, 2.6, 2.0)}, (7.0, 7.6, 7.3)
    assert sentence(**close) == "At batch size 2 use bn or sn (2.2 to 2.2 % error; 3 seeds do not separate them)."
    assert sentence(**close, gn_8=far) == (
        "At batch size 2 use bn or sn (2.2 to 2.2 % error; 3 seeds do not separate them); worse: gn:8 (7.3 %)."
    )


def test_a_norm_of_which_a_run_failed_is_not_recommended():
    ranking = rank(make_records(bn=(50.0, 52.0, 51.0), gn_4=(20.0, 21.0, 22.5), sn=(1.0, None, 1.0)), 2)
    assert ranking.best == "gn:4"
    assert ranking.failed == ["sn"]
    assert ranking.sentence().endswith("; worse: bn (51.0 %). sn failed.")
    assert sentence(bn=(None, 2.0)) == "At batch size 2 every norm failed."
    assert rank([], 2).sentence() == "At batch size 2 no run has finished."
    assert sentence(bn=(None,), sn=(2.0,)) == "At batch size 2 use sn (2.0 % error). bn failed."


def test_nothing_is_significant_with_fewer_than_three_common_seeds():
    two = rank(make_records(bn=(50.0, 52.0), gn_4=(20.0, 22.0)), 2)
    assert not two.is_tested
    assert (
        two.sentence() == "At batch size 2 gn:4 has the lowest mean (21.0 % error); at least 3 seeds are needed to compare norms."
    )
    uneven = rank(make_records(bn=(50.0, 52.0), gn_4=(20.0, 22.0, 21.0)), 2)
    assert uneven.is_tested
    assert uneven.not_worse == ["bn", "gn:4"]


def test_several_comparisons_need_stronger_evidence_than_one():
    best, other = (20.0, 20.5, 21.5), (21.0, 22.0, 22.2)
    noisy = {"gn_2": (15.0, 28.0, 21.0), "gn_4": (27.0, 16.0, 22.0), "gn_8": (20.0, 26.0, 17.5)}
    assert rank(make_records(sn=best, gn_1=other), 2).worse == ["gn:1"]
    assert rank(make_records(sn=best, gn_1=other, **noisy), 2).worse == []


def test_seeds_are_paired_whatever_the_order_of_the_make_records():
    ordered = make_records(bn=(10.0, 20.0, 30.0), sn=(9.0, 19.0, 28.9))
    assert rank(ordered, 2).worse == ["bn"]  # unpaired, the spread over seeds would hide the difference
    assert rank(ordered[::-1], 2).worse == ["bn"]


def test_there_is_one_sentence_per_batch_size():
    both = make_records(2, bn=(3.0,)) + make_records(32, bn=(2.0,))
    sentences = "At batch size 2 use bn (3.0 % error). At batch size 32 use bn (2.0 % error)."
    assert Results(both, ["bn"], [2, 32]).recommendation == sentences


def test_a_mean_is_over_the_runs_that_have_the_quantity():
    def make_shift(*shifts):
        return [LayerShift(position, "", "bn", None, None, shift) for position, shift in enumerate(shifts)]

    shifts = [make_shift(0.1, None, 0.3), make_shift(0.5), None]
    records = [make_record("bn", seed=seed, shift=shift) for seed, shift in enumerate(shifts)]
    results = Results(records, ["bn"], [2])
    assert [record.max_shift for record in records] == [0.3, 0.5, None]
    assert results.mean("bn", 2, lambda record: record.max_shift) == pytest.approx(0.4)
    assert results.mean("bn", 2, lambda record: record.saved_bytes) is None


def test_the_table_has_costs_relative_to_bn_or_else_to_the_first_norm():
    records = [make_record(norm, saved_bytes=size) for norm, size in (("sn", 6), ("bn", 3))]
    table = make_table(Results(records, ["sn", "bn"], [2]), {("sn", 2): 0.03, ("bn", 2): 0.02})
    assert table["sn"]["step time, batch 2"] == pytest.approx(1.5)
    assert table["sn"]["memory, batch 2"] == 2
    assert table["sn"]["error %, batch 2"] == Result(2.5, None, 1)
    assert table["bn"]["step time, batch 2"] == table["bn"]["memory, batch 2"] == 1
    assert table.columns == [Column(quantity, 2) for quantity in ("error %", "shift", "step time", "memory")]
    assert table.finding.splitlines()[0].endswith("relative to bn.")
    alone = make_table(Results(records[:1], ["sn"], [2]), {})
    assert alone["sn"]["step time, batch 2"] is None
    assert "relative to sn." in alone.finding
    failed = make_table(Results(make_records(bn=(None,)), ["bn"], [2]), {})
    assert failed.finding == "At batch size 2 every norm failed."


def test_the_text_of_the_table_has_the_decimals_of_the_metric():
    table = make_table(Results(make_records(bn=(50.0, 52.0)), ["bn"], [2]), {})
    header = "norm  error %, batch 2   shift, batch 2  step time, batch 2  memory, batch 2"
    assert table.text().splitlines()[:2] == [header, "bn    51.0 [38.3, 63.7]"]
