"""Cuts resolve for a number of channels, or raise with the usable numbers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynorm.core.cuts import ALL, Cut, JointCut, largest_usable_groups
from anynorm.errors import ShapeError, SpecError


def test_a_cut_that_does_not_divide_names_the_usable_numbers():
    with pytest.raises(SpecError, match=r"gn:32 cuts 48 channels into 32 equal parts; .* Usable: 1 2 3 4 6 8 12 16 24 48\."):
        Cut(ALL, 32, 1, name="gn:32").resolve(48)


@pytest.mark.parametrize(
    ("groups", "channels", "cut"),
    [
        (16, 64, Cut(1, 16, 1)),
        (64, 64, Cut(1, 64, 1)),
        (1, 64, Cut(1, 1, 1)),
        (256, 64, Cut(1, ALL, 4)),
        (256, 36, Cut(1, 4, 64, crosses_channels=True)),
    ],
)
def test_a_joint_cut_becomes_whole_channels_or_strips_or_parts_that_cross_channels(groups, channels, cut):
    assert JointCut(groups).resolve(channels) == cut
    assert JointCut(groups, ALL).resolve(channels) == replace(cut, samples=ALL)


@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 24))
def test_the_parts_of_a_joint_cut_are_equal_and_contiguous_wherever_they_exist(groups, c, s):
    cut = JointCut(groups).resolve(c)
    if c * s % groups:
        with pytest.raises(ShapeError):
            cut.check_shape((1, c, s))
        return
    cut.check_shape((1, c, s))
    _, channels, space = cut.parts((1, c, s))
    flat = [cut.part_of((0, *divmod(value, s)), (1, c, s)) for value in range(c * s)]
    assert [k * space + strip for _, k, strip in flat] == [value // (c * s // groups) for value in range(c * s)]
    assert channels * space == groups


def test_a_joint_cut_whose_number_does_not_divide_the_values_names_the_nearest_that_does():
    message = r"bgn:256 cuts 36 channels × 49 positions = 1764 values into 256 equal groups; 1764 is not divisible by 256\. "
    with pytest.raises(ShapeError, match=message + r"Nearest usable: 252\."):
        JointCut(256, name="bgn:256").resolve(36).check_shape((2, 36, 49))


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
    cuts = (Cut(1, ALL, 1), Cut(ALL, 4, ALL), Cut(ALL, 4, 1, samples_per_part=8), Cut(ALL, 4, 64, crosses_channels=True))
    assert [cut.literal() for cut in cuts] == ["[1,*,1]", "[*,4,*]", "[/8,4,1]", "[*,256]"]
    assert [JointCut(256).literal(), JointCut(256, ALL).literal()] == ["[1,256]", "[*,256]"]


def test_groups_in_brackets_are_never_replaced_by_the_nearest_usable_number():
    for channels in (36, 72, 108, 144):  # of DARTS networks: 256 groups end inside channels
        assert JointCut(256).nearest(channels) == JointCut(256)
        assert JointCut(256, name="bgn:256").nearest(channels).groups != 256


@pytest.mark.parametrize("numbers", [(4, 1, 1, 1), (0, -2, 1, 1), (0, 4, 1, 0), (1, 4, 1, 2)])
def test_impossible_cuts_raise(numbers):
    with pytest.raises(SpecError, match=r"samples of a cut must be 1 or ALL|A cut needs numbers of parts of at least 1"):
        Cut(*numbers)
