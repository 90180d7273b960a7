"""Drawings of cuts: values have one color if and only if they share a statistic, by an enumeration of our own."""

import itertools

import numpy as np
import pytest
from typer.testing import CliRunner

import anynorm
from anynorm.cli import app
from anynorm.draw import cuts, save_cuts
from anynorm.draw.blocks import MAX_DRAWN, find_blocks
from anynorm.draw.cut_drawing import CHANNEL, POSITION, SAMPLE, color_parts

Figure = pytest.importorskip("matplotlib.figure", reason="needs the lab extra").Figure
to_hex = pytest.importorskip("matplotlib.colors").to_hex
Image = pytest.importorskip("PIL.Image")
N, C, S = SHAPE = (4, 6, 4)
SAME = {
    "bn": lambda n, c, s: c,
    "in": lambda n, c, s: (n, c),
    "ln": lambda n, c, s: n,
    "gn:2": lambda n, c, s: (n, c // 3),
    "pn": lambda n, c, s: (n, s),
    "en": lambda n, c, s: 0,
    "en:2": lambda n, c, s: c // 3,
    "bgn:2": lambda n, c, s: c // 3,
    "bgn:12": lambda n, c, s: (c, s // 2),
    "bgn:4": lambda n, c, s: (c * S + s) // 6,  # ends inside channels
    "[*,4]": lambda n, c, s: (n, (c * S + s) // 6),
    "gbgn:2,2": lambda n, c, s: (n // 2, c // 3),
    "[1,2,2]": lambda n, c, s: (c // 3, s // 2),
    "[*,*,*]": lambda n, c, s: (n, c, s),
}
"""Values share a statistic of each cut if these are equal."""


def bn_by_domain(n, c, s):
    return n // 2, c


CASES = [(spec, {"mean and variance": {spec: same}}) for spec, same in SAME.items()] + [
    ("auxbn@2", {"mean and variance": {"bn": bn_by_domain}}),
    ("gn:2/bn.dom@2", {"mean": {"gn:2": SAME["gn:2"]}, "variance": {"bn": bn_by_domain}}),
    ("hn:2", {"mean": {"bn": SAME["bn"]}, "variance": {"en:2": SAME["en:2"]}}),
    ("rms", {"mean square": {"pn": SAME["pn"]}}),
    ("0/bn+en", {"mean square": {"bn": SAME["bn"], "en": SAME["en"]}}),
    ("sn", {"mean and variance": {name: SAME[name] for name in ("in", "ln", "bn")}}),
    ("in/bn+en", {"mean": {"in": SAME["in"]}, "variance": {"bn": SAME["bn"], "en": SAME["en"]}}),
    ("ibn", {"mean and variance": {"in | bn": lambda n, c, s: (n, c) if c < 3 else c}}),
    ("gw:2", {"mean and variance": {"gw:2": SAME["gn:2"]}}),
    ("modenorm:2", {"mean and variance": {"bn": SAME["bn"]}}),
]


def read_faces(collection):
    """Return the value at each side that is drawn, from the geometry of the picture alone, and its color."""
    paths = [path.vertices[:4] for path in collection.get_paths()]
    corner = paths[0][0]  # of sample, channel and position 0
    axes = {"n": np.array(SAMPLE), "c": np.array(CHANNEL), "s": np.array(POSITION)}
    faces = []
    for points, color in zip(paths, collection.get_facecolors(), strict=True):
        first, second = (next(name for name, step in axes.items() if np.allclose(points[k] - points[0], step)) for k in (1, 3))
        fixed = ({"n", "c", "s"} - {first, second}).pop()
        index = {fixed: {"n": 0, "c": C - 1, "s": 0}[fixed]}
        offset = points[0] - corner - (C * axes["c"] if fixed == "c" else 0)
        steps = np.linalg.solve(np.stack([axes[first], axes[second]], 1), offset)
        assert np.allclose(steps, steps.round())
        index |= dict(zip((first, second), steps.round().astype(int).tolist(), strict=True))
        faces.append(((index["n"], index["c"], index["s"]), to_hex(color)))
    return faces


@pytest.mark.parametrize(("spec", "expected"), CASES, ids=[spec for spec, _ in CASES])
def test_values_have_one_color_if_and_only_if_they_share_a_statistic(spec, expected):
    _, ax = cuts(spec, SHAPE)
    collections = [collection for collection in ax.collections if not collection.get_label().startswith("_")]
    names = [f"{statistics}: {cut}" for statistics, sides in expected.items() for cut in sides]
    assert [collection.get_label() for collection in collections] == names
    for collection, same in zip(collections, [same for sides in expected.values() for same in sides.values()], strict=True):
        faces = read_faces(collection)
        visible = {(n, c, s) for n, c, s in itertools.product(range(N), range(C), range(S)) if n == 0 or c == C - 1 or s == 0}
        assert {index for index, _ in faces} == visible
        pairs = {(same(*index), color) for index, color in faces}
        assert len(pairs) == len({key for key, _ in pairs}) == len({color for _, color in pairs})


@pytest.mark.parametrize("entry", anynorm.zoo(), ids=lambda entry: entry.spec)
def test_every_norm_of_the_zoo_is_drawn_in_a_shape_that_fits_it(entry):
    drawing = find_blocks(entry.spec)
    assert drawing.blocks
    for block in drawing.blocks:
        colors = color_parts(block.parts)
        assert len(set(colors.values())) == len(set(block.parts.values()))
    assert all(0 < len(axis) <= limit for axis, limit in zip(drawing.indices, MAX_DRAWN, strict=True))


def test_groups_are_drawn_with_several_channels_each_also_if_there_are_many():
    block = find_blocks("gn:32").blocks[0]
    channels = sorted({index[1] for index in block.parts})
    groups = [block.parts[0, c, 0][1] for c in channels]
    assert groups == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {index[0] for index in find_blocks("gbgn:8,2").blocks[0].parts} == {0, 4, 8, 12}


def words(spec):
    return [block.words for block in find_blocks(spec).blocks]


def test_captions_say_in_words_what_is_pooled():
    assert words("bn") == ["one per channel"]
    assert words("en") == ["one for the whole batch"]
    assert words("gbgn:2,2") == ["one per 2 samples and group of channels"]
    assert words("auxbn@2") == ["one per domain and channel"]
    assert words("bgn:12") == ["one per channel and strip of positions"]
    assert words("pn") == ["one per sample and position"]
    assert words("[*,*,*]") == ["one per sample, channel and position"]
    assert [block.joined_by for block in find_blocks("sn").blocks] == ["", "+", "+"]
    assert [block.joined_by for block in find_blocks("sn.hard").blocks] == ["", "or", "or"]
    assert "once for each of 3 modes" in find_blocks("modenorm:3").notes[0]
    assert find_blocks("sn:2").notes == ["each of 2 groups of channels has weights of its own"]


def test_axes_that_are_passed_are_used_and_numbers_are_written_where_not_all_is_drawn():
    fig = Figure()
    ax = fig.subplots()
    assert cuts("bn", (64, 6, 2, 2), ax=ax) == (fig, ax)
    texts = [text.get_text() for text in ax.texts]
    assert "4 of 64 samples" in texts
    assert "channels" in texts
    assert "positions" in texts


def test_a_picture_is_the_same_each_time_and_transparent(tmp_path):
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    save_cuts("hn:2", first)
    save_cuts("hn:2", second)
    assert first.read_bytes() == second.read_bytes()
    save_cuts("hn:2", tmp_path / "hn.png")
    assert np.asarray(Image.open(tmp_path / "hn.png"))[0, 0, 3] == 0


def test_errors_name_the_norm_and_the_shape(tmp_path):
    with pytest.raises(anynorm.ShapeError, match=r"bgn:5.*Input \(4, 6, 4\)"):
        cuts("bgn:5", SHAPE)
    with pytest.raises(anynorm.SpecError, match="6 is not divisible by 4"):
        cuts("gn:4", SHAPE)
    with pytest.raises(anynorm.DataError, match="must have the suffix of a picture"):
        save_cuts("bn", tmp_path / "bn.doc")


def test_the_command_writes_the_picture_of_the_library(tmp_path):
    save_cuts("hn:32", tmp_path / "library.svg")
    done = CliRunner().invoke(app, ["show", "hn:32", "--svg", str(tmp_path / "command.svg")])
    assert done.exit_code == 0, done.output
    assert done.output.replace("\n", "").endswith("command.svg.")
    assert (tmp_path / "command.svg").read_bytes() == (tmp_path / "library.svg").read_bytes()
    CliRunner().invoke(app, ["show", "hn:2", "--shape", "2,4,2,2", "--svg", str(tmp_path / "small.svg")])
    save_cuts("hn:2", tmp_path / "library.svg", (2, 4, 2, 2))
    assert (tmp_path / "small.svg").read_bytes() == (tmp_path / "library.svg").read_bytes()
