"""Search spaces by name: supernets, and networks with a fixed architecture.

    nasbench201                     the supernet of NAS-Bench-201; see `nasbench201.network`
    nasbench201.n1                  the same with one cell per stage instead of five
    nasbench201.n1:3,0,1,2,4,3      the network with this cell; see `nasbench201.notation`
    darts                           the supernet of the DARTS space with 8 cells; see `darts.search_network`
    darts:GENOTYPE, darts:v2        the network of a genotype with 20 cells; see `darts.genotype` and `darts.evaluation_network`
    darts.n8:GENOTYPE               the same with 8 cells

A network with a fixed architecture is also a model of `anynorm.lab.models.build_model`. A custom supernet has the name
`package.module:factory`; the factory is called with the keyword arguments `shape` (a `DataShape`) and `width`, if it has them,
and returns a `Supernet`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from anynorm.errors import DataError
from anynorm.io.checkpoints import call_with_known, import_object
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.search.darts.evaluation_network import evaluation_network
from anynorm.lab.models.search.darts.search_network import Darts
from anynorm.lab.models.search.nasbench201.network import NasBench201, cell_network
from anynorm.lab.models.search.supernet import Supernet


class Space(NamedTuple):
    """A search space.

    Attributes:
        supernet: a function `supernet(shape, width=…, num_cells=…)` that returns a supernet; both keywords have defaults.
        network: a function `network(architecture, shape, width=…, num_cells=…)` that returns the untrained network of an
            architecture.
    """

    supernet: Callable[..., Supernet]
    network: Callable[..., nn.Module]


SPACES: dict[str, Space] = {"nasbench201": Space(NasBench201, cell_network), "darts": Space(Darts, evaluation_network)}


class SpaceName(NamedTuple):
    """The parts of a name such as nasbench201.n1:3,0,1,2,4,3."""

    space: Space
    num_cells: int | None
    architecture: str

    def sizes(self, width: float | None) -> dict[str, float]:
        """Return the sizes that differ from the defaults of the space, as keyword arguments."""
        given = {"width": width, "num_cells": self.num_cells}
        return {name: size for name, size in given.items() if size is not None}


def parse_space(name: str) -> SpaceName | None:
    """Parse the name of a supernet or network of a search space; return None for any other name."""
    match = re.fullmatch(rf"({'|'.join(SPACES)})(?:\.n([1-9]\d*))?(?::(.+))?", name)
    return None if match is None else SpaceName(SPACES[match[1]], int(match[2]) if match[2] else None, match[3] or "")


def build_supernet(name: str, shape: DataShape, width: float | None = None) -> Supernet:
    """Build a supernet by name.

    Args:
        name: name of a supernet, such as nasbench201 or nasbench201.n1, or `package.module:factory`.
        shape: shape of the images, and the number of classes.
        width: multiplier of the number of channels; None for the default.

    Raises:
        DataError: if the name is not that of a space, or the factory does not return a `Supernet`.
    """
    parts = parse_space(name)
    if parts is not None and not parts.architecture:
        return parts.space.supernet(shape, **parts.sizes(width))
    if parts is not None or ":" not in name:
        raise DataError(
            f"a search needs a space; got the model {name!r}. Usable: {' '.join(SPACES)}, with .n1 for one cell, or "
            "package.module:factory."
        )
    supernet = call_with_known(name, import_object(name), {"shape": shape, "width": 1.0 if width is None else width})
    if not isinstance(supernet, Supernet):
        raise DataError(f"{name!r} must return an anynorm.lab.models.search.Supernet; got {type(supernet).__name__}.")
    return supernet


def build_architecture(name: str, shape: DataShape, width: float | None = None) -> nn.Module:
    """Build the network of a fixed architecture, such as nasbench201.n1:3,0,1,2,4,3; arguments as in `build_supernet`.

    Raises:
        DataError: if the name has no architecture, or the architecture is not in the space.
    """
    parts = parse_space(name)
    if parts is None or not parts.architecture:
        raise DataError(f"a network needs an architecture; got the model {name!r}. Usable: {name}:ARCHITECTURE.")
    return parts.space.network(parts.architecture, shape, **parts.sizes(width))
