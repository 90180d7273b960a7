"""A file is replaced completely or not at all."""

import pytest
import torch

import anynorm
from anynorm.io.atomic import atomic_write


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "state.pt"
    target.write_text("previous")
    return target


def write_half_and_raise(path, error):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise error


def write_to_full_disk(path):
    with atomic_write(path) as temporary:
        temporary.symlink_to("/dev/full")
        torch.save({"weight": torch.zeros(1000)}, temporary)


def test_the_previous_file_stays_until_the_block_ends(path):
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "previous"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("file write failed")])
def test_a_failed_write_raises_disk_error_and_keeps_the_previous_file(path, error):
    expected = rf"cannot write .*state\.pt: {error}\. The previous file is intact; free disk space and run again\."
    with pytest.raises(anynorm.DiskError, match=expected):
        write_half_and_raise(path, error)
    assert path.read_text() == "previous"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
def test_other_exceptions_propagate_and_leave_no_part(path, error):
    with pytest.raises(error):
        write_half_and_raise(path, error)
    assert path.read_text() == "previous"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_under_torch_save_raises_disk_error(path):
    with pytest.raises(anynorm.DiskError, match="cannot write"):
        write_to_full_disk(path)
    assert path.read_text() == "previous"


def test_a_missing_directory_raises_disk_error_and_names_it(tmp_path):
    message = f"cannot write .*create the folder {tmp_path / 'none'} and run again"
    with pytest.raises(anynorm.DiskError, match=message), atomic_write(tmp_path / "none" / "file") as temporary:
        temporary.write_text("x")
