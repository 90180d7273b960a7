"""Cuts resolve for a number of channels, or raise with the usable numbers."""

import pytest

from anynorm.core.cuts import ALL, Cut, JointCut, largest_usable_groups
from anynorm.errors import ShapeError, SpecError


def test_a_cut_that_does_not_divide_names_the_usable_numbers():
    with pytest.raises(SpecError, match=r"gn:32 cuts 48 channels into 32 equal parts; .* Usable: 1 2 3 4 6 8 12 16 24 48\."):
        Cut(ALL, 32, 1, name="gn:32").resolve(48)


@pytest.mark.parametrize(
    ("groups", "channels", "cut"),
    [(16, 64, Cut(1, 16, 1)), (64, 64, Cut(1, 64, 1)), (1, 64, Cut(1, 1, 1)), (256, 64, Cut(1, ALL, 4))],
)
def test_a_joint_cut_becomes_whole_channels_or_strips_of_channels(groups, channels, cut):
    assert JointCut(groups).resolve(channels) == cut


def test_a_joint_cut_that_divides_neither_way_names_the_nearest_on_both_sides():
    with pytest.raises(
        SpecError, match=r"48 channels .* into 32 groups; neither number divides the other.*Nearest usable: 24 or 48\."
    ):
        JointCut(32).resolve(48)
    with pytest.raises(SpecError, match=r"Nearest usable: 96 or 144\."):
        JointCut(100).resolve(48)


def test_strips_that_do_not_divide_the_positions_name_the_nearest_group_number():
    with pytest.raises(ShapeError, match=r"9 is not divisible by 4\. Nearest usable: bgn:96\."):
        Cut(1, ALL, 4).check_shape((2, 32, 9))
    Cut(1, ALL, 3).check_shape((2, 32, 9))


def test_ghost_batches_require_a_multiple_of_their_size():
    with pytest.raises(ShapeError, match="the batch size must be a multiple of 4; got 6"):
        Cut(ALL, 4, 1, samples_per_part=4).check_shape((6, 8, 9))


@pytest.mark.parametrize(
    ("groups", "channels", "usable"), [(512, 64, 512), (128, 48, 96), (2, 7, 1), (64, 96, 48), (16, 20, 10), (512, 3, 510)]
)
def test_the_nearest_usable_group_number_is_never_above(groups, channels, usable):
    assert largest_usable_groups(groups, channels) == usable
    JointCut(usable).resolve(channels)


def test_literals_write_every_axis():
    assert [cut.literal() for cut in (Cut(1, ALL, 1), Cut(ALL, 4, ALL), Cut(ALL, 4, 1, samples_per_part=8))] == [
        "[1,*,1]",
        "[*,4,*]",
        "[/8,4,1]",
    ]


@pytest.mark.parametrize("numbers", [(4, 1, 1, 1), (0, -2, 1, 1), (0, 4, 1, 0), (1, 4, 1, 2)])
def test_impossible_cuts_raise(numbers):
    with pytest.raises(SpecError, match=r"samples of a cut must be 1 or ALL|A cut needs numbers of parts of at least 1"):
        Cut(*numbers)
