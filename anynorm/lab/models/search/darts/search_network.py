"""The search network of the DARTS space (Liu et al. 2019, sec. 3.1): cells with all operations on each edge.

Normal and reduction cells have separate α. The norms, except that of the stem, have no affine.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.search.darts.cells import NORMAL, REDUCTION, MixedCell
from anynorm.lab.models.search.darts.evaluation_network import CHANNELS as EVALUATION_CHANNELS
from anynorm.lab.models.search.darts.evaluation_network import evaluation_network
from anynorm.lab.models.search.darts.genotype import NUM_EDGES, Genotype, log_odds, strongest_edges
from anynorm.lab.models.search.darts.layout import layout_cells, make_head, make_stem
from anynorm.lab.models.search.darts.operations import OPERATIONS
from anynorm.lab.models.search.supernet import Supernet

CHANNELS, NUM_CELLS = 16, 8
"""Number of channels C of the first cell, and number of cells, in the paper's search."""


class Darts(Supernet):
    """The supernet of the DARTS space.

    Args:
        shape: shape of the images, and the number of classes.
        width: multiplier of the 16 channels of the first cell.
        num_cells: number of cells.

    >>> supernet = Darts(DataShape(3, 16, 16, 10), width=0.25, num_cells=3)
    >>> supernet.alphas["normal"].shape
    torch.Size([14, 8])
    """

    op_names: ClassVar[tuple[str, ...]] = OPERATIONS

    def __init__(self, shape: DataShape, width: float = 1.0, num_cells: int = NUM_CELLS) -> None:
        super().__init__({NORMAL: NUM_EDGES, REDUCTION: NUM_EDGES})
        self.shape, self.width, self.num_cells = shape, width, num_cells
        channels = scale_channels(CHANNELS, width, 4)
        layouts = layout_cells(num_cells, channels)
        self.stem = make_stem(shape, channels)
        self.cells = nn.ModuleList(MixedCell(layout) for layout in layouts)
        self.head = make_head(layouts, shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        selections = {kind: self.selection(kind) for kind in self.alphas}
        before = last = self.stem(x)
        for cell in self.cells:
            assert isinstance(cell, MixedCell)
            before, last = last, cell(before, last, selections[cell.kind])
        logits: Tensor = self.head(last)
        return logits

    def architecture(self) -> str:
        """Return the genotype with the strongest operations as a string."""
        return str(Genotype(*(strongest_edges(log_odds(self.alphas[kind])) for kind in (NORMAL, REDUCTION))))

    def build(self, architecture: str) -> nn.Module:
        """Return the untrained network of a genotype, with the channels and number of cells of this supernet."""
        return evaluation_network(architecture, self.shape, self.width * CHANNELS / EVALUATION_CHANNELS, self.num_cells)
