"""The table of NAS-Bench-201: expectations without sampling, rows of cells, the benchmark's own files, unusable tables."""

import numpy as np
import pytest
import torch

import anynorm
from anynorm.lab.tasks.search.nasbench import OP_NAMES, CellTable, convert_nats_bench, format_cell, load_table, parse_cell
from tests.tables import synthetic_gains, synthetic_table, write_table

TABLE = synthetic_table()
ACCURACY = TABLE.accuracy("cifar10")


def random_policy(num_edges=6, num_ops=5, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_edges, num_ops, generator=generator, dtype=torch.float64).softmax(1)


def test_the_expected_accuracy_of_an_additive_table_is_the_sum_of_expected_gains():
    policy = random_policy()
    expected = 10 + (policy * synthetic_gains()).sum()
    torch.testing.assert_close(TABLE.expected(policy, ACCURACY), expected)


def test_expectation_and_gradient_agree_with_a_loop_over_cells():
    table = synthetic_table(3, 3)
    policy = random_policy(3, 3)
    values = torch.rand(27, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    naive = sum(
        float(value) * np.prod([float(policy[edge, op]) for edge, op in enumerate(cell)])
        for cell, value in zip(table.ops.tolist(), values, strict=True)
    )
    assert float(table.expected(policy, values)) == pytest.approx(naive, rel=1e-12)
    assert torch.autograd.gradcheck(lambda p: table.expected(p, values), policy.requires_grad_())


def test_probabilities_of_cells_sum_to_one_and_a_certain_policy_has_one_cell():
    policy = random_policy()
    torch.testing.assert_close(TABLE.log_probabilities(policy.log()).exp().sum(), torch.ones((), dtype=torch.float64))
    certain = torch.eye(5, dtype=torch.float64)[TABLE.ops[7]]
    assert float(TABLE.expected(certain, ACCURACY)) == pytest.approx(float(ACCURACY[7]))


def test_index_inverts_ops_for_one_cell_and_for_batches():
    assert torch.equal(TABLE.index(TABLE.ops), torch.arange(len(TABLE)))
    assert int(TABLE.index(TABLE.ops[11].tolist())) == 11
    assert TABLE.index(TABLE.ops[:6].view(2, 3, 6)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_best_cell_has_the_best_operation_of_each_edge_and_a_random_one_the_mean_gains():
    row, value = TABLE.best(ACCURACY)
    assert TABLE.ops[row].tolist() == synthetic_gains().argmax(1).tolist()
    assert value == pytest.approx(10 + float(synthetic_gains().amax(1).sum()))
    assert TABLE.random_mean(ACCURACY) == pytest.approx(10 + float(synthetic_gains().mean(1).sum()))


def test_a_table_is_read_from_the_data_directory_and_from_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    path = write_table(tmp_path)
    for table in (load_table(), load_table(path), load_table("nasbench201/nb201.npz")):
        assert torch.equal(table.ops, TABLE.ops)
        assert table.op_names == OP_NAMES
        assert torch.equal(table.accuracy("cifar10", 12, "valid"), ACCURACY)


@pytest.mark.parametrize("cell", [[0] * 6, [4, 3, 2, 1, 0, 4]])
def test_notation_of_cells_is_inverted(cell):
    assert parse_cell(format_cell(cell)) == cell


class StandIn:
    """An object with the methods of nats_bench's NATStopology that are used, for a synthetic table."""

    def __init__(self, table, lacks=()):
        self.table, self.lacks = table, lacks

    def __len__(self):
        return len(self.table.ops)

    def query_index_by_arch(self, arch):
        return int(self.table.index(parse_cell(arch)))

    def arch(self, index):
        return format_cell(self.table.ops[index])

    def get_more_info(self, index, dataset, iepoch=None, hp="12", is_random=True):
        assert iepoch is None, "the last epoch"
        assert is_random is False, "the mean over trials"
        base = float(self.table.accuracy("cifar10")[index]) + {"12": 0, "200": 1}[hp]
        base += {"cifar10-valid": 0.25, "cifar10": 0.5, "cifar100": 2, "ImageNet16-120": 4}[dataset]
        info = {"train-accuracy": 99.0, "valid-accuracy": base, "test-accuracy": base + 0.125}
        if dataset == "cifar10":  # trained on the validation images too
            del info["valid-accuracy"]
        return {name: value for name, value in info.items() if name not in self.lacks}


def test_the_benchmarks_own_file_is_converted(tmp_path):
    table = convert_nats_bench(StandIn(TABLE), tmp_path / "own.npz")
    again = load_table(tmp_path / "own.npz")
    for data_set, epochs, split, shift in [
        ("cifar10", 12, "valid", 0.25),
        ("cifar10", 200, "valid", 1.25),
        ("cifar10", 12, "test", 0.625),
        ("cifar100", 200, "test", 3.125),
        ("imagenet16", 12, "valid", 4.0),
    ]:
        for each in (table, again):
            torch.testing.assert_close(each.accuracy(data_set, epochs, split), ACCURACY + shift, atol=1e-5, rtol=0)
    assert torch.equal(again.ops, TABLE.ops)


def test_a_result_that_the_benchmark_does_not_have_is_named(tmp_path):
    with pytest.raises(anynorm.DataError, match="cell 0 has no test-accuracy on cifar10 after 12 epochs; got train-accuracy"):
        convert_nats_bench(StandIn(TABLE, lacks=("test-accuracy",)), tmp_path / "own.npz")
    assert not list(tmp_path.iterdir())


def test_a_benchmark_of_another_space_is_refused(tmp_path):
    class Other(StandIn):
        def arch(self, index):
            return "|sep_conv~0|"

    with pytest.raises(anynorm.DataError, match=r"a cell must be in the form \|none~0\|.*; got '\|sep_conv~0\|'"):
        convert_nats_bench(Other(TABLE), tmp_path / "own.npz")


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    with pytest.raises(anynorm.DataError, match=r"nasbench201/nb201.npz not found under .* Put it there, or set ANYNORM_DATA"):
        load_table()
    with pytest.raises(anynorm.DataError, match=r"cannot read the table none.npz"):
        load_table("none.npz")
    (tmp_path / "text.npz").write_text("not a table")
    with pytest.raises(anynorm.DataError, match=r"cannot read the table .*text.npz.*It must be an .npz file"):
        load_table(tmp_path / "text.npz")


OPS = TABLE.ops.numpy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops": None}, "must have the arrays ops and op_names; it has no ops"),
        ({"op_names": np.array(["none", "skip"])}, "operations of .* must be none skip_connect .*; got none skip"),
        ({"edge_order": np.array(["1<-0"])}, "edges of .* must be 1<-0 2<-0 .*; got 1<-0"),
        ({"ops": OPS[:, :5]}, r"must be of shape \(cells, 6 edges\); got \(15625, 5\)"),
        ({"ops": OPS[:-2]}, "each of the 15625 cells once; 2 are missing and 0 occur more than once"),
        ({"ops": np.concatenate([OPS[:-1], OPS[:1]])}, "1 are missing and 1 occur more than once"),
        ({"ops": OPS + 1}, r"ops must be numbers in \[0, 5\); got values from 1 to 5"),
        (
            {"e12_cifar10_test": np.full(15625, 101.0)},
            r"accuracies of cifar10, 12 epochs, test must be 15625 numbers in \[0, 100\]",
        ),
        ({"e12_cifar10_test": np.full(3, 50.0)}, r"got shape \(3,\)"),
        ({"e12_cifar10_test": np.full(15625, np.nan)}, "values from nan to nan"),
    ],
)
def test_a_table_that_does_not_fit_the_space_is_refused(tmp_path, changes, message):
    path = write_table(tmp_path, **changes)
    with pytest.raises(anynorm.DataError, match=message):
        load_table(path)


def test_unusable_arguments_are_refused():
    with pytest.raises(
        anynorm.DataError, match=r"no accuracies of cifar11, 200 epochs, test\. Usable: cifar10, 12 epochs, valid; "
    ):
        TABLE.accuracy("cifar11")
    with pytest.raises(anynorm.DataError, match="no accuracies of cifar10, 90 epochs, test"):
        TABLE.accuracy("cifar10", 90)
    with pytest.raises(anynorm.DataError, match=r"ops must have 6 edges in the last dimension; got shape \(5,\)"):
        TABLE.index([0] * 5)
    with pytest.raises(anynorm.DataError, match=r"ops must be numbers in \[0, 5\); got values from 0 to 5"):
        TABLE.index([0, 0, 0, 0, 0, 5])
    for method in (TABLE.log_probabilities, lambda policy: TABLE.expected(policy, ACCURACY)):
        with pytest.raises(anynorm.DataError, match=r"\(edges, operations\) = \(6, 5\); got \(5, 6\)"):
            method(torch.ones(5, 6))
    with pytest.raises(anynorm.DataError, match=r"ops must be of shape \(cells, edges\); got \(3,\)"):
        CellTable(torch.zeros(3), OP_NAMES, {})
