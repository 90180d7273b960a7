"""Options of tasks: types, limits, old names and texts."""

from dataclasses import dataclass
from typing import Any

import pytest

from anynorm.errors import SpecError
from anynorm.lab.training.config import Config
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class WaveOptions(Options):
    """Options of every type."""

    noise: float = option(0.3, "noise of the waves.", minimum=0)
    share: float = option(0.5, "share of the waves.", minimum=0, below=1)
    channels: int = option(16, "channels of the network.", minimum=1, old_name="width_of_network")
    kind: str = option("sine", "kind of the waves.", choices=("sine", "square"))
    sizes: tuple[int, ...] = option((8, 16), "sizes of the waves.", above=0)
    scales: tuple[float, ...] = option((), "scales of the waves.")
    limit: int | None = option(None, "number of waves.")
    masks: bool = option(False, "whether there are masks.")

    def check(self) -> None:
        if self.kind == "square" and self.masks:
            raise SpecError("square waves have no masks.")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise": -1}, r"noise must be 0 or more; got -1\.0"),
        ({"noise": float("nan")}, "noise must be 0 or more; got nan"),
        ({"share": 1}, r"share must be in \[0, 1\); got 1\.0"),
        ({"channels": 1.5}, r"channels must be an integer; got 1\.5"),
        ({"channels": True}, "channels must be an integer; got True"),
        ({"masks": 1}, "masks must be true or false; got 1"),
        ({"masks": "maybe"}, "masks must be true or false; got 'maybe'"),
        ({"kind": "saw"}, "kind must be one of sine square; got 'saw'"),
        ({"kind": 3}, "kind must be text; got 3"),
        ({"sizes": (8, 0)}, r"sizes must be greater than 0; got \(8, 0\)"),
        ({"sizes": "8,x"}, "sizes must be comma-separated integers; got '8,x'"),
        ({"kind": "square", "masks": True}, "square waves have no masks"),
        ({"nois": 1}, r"Waves has no option 'nois'; its options are noise share .*\. Did you mean noise\?"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, message):
    with pytest.raises(SpecError, match=message):
        WaveOptions.from_values(values, "Waves")


def test_texts_lists_and_old_names_of_stored_runs_are_read():
    stored = {"noise": 1, "sizes": "4,8", "scales": [1, 0.5], "width_of_network": 3, "limit": "7"}
    assert WaveOptions.from_values(stored) == WaveOptions(noise=1.0, sizes=(4, 8), scales=(1.0, 0.5), channels=3, limit=7)


def test_a_run_has_one_id_however_its_options_are_given():
    options = WaveOptions(scales=(0.75, 1.0, 1.25), noise=0.3, channels=8)
    assert options.changed() == {"scales": "0.75,1,1.25", "channels": 8}
    given: list[Any] = [options, {"scales": "0.75,1,1.25", "channels": 8}, {"channels": 8, "scales": (0.75, 1.0, 1.25)}]
    assert len({Config(options=each).id for each in given}) == 1
    assert all(WaveOptions.from_values(Config(options=each).option_values) == options for each in given)
