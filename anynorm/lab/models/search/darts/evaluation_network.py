"""The evaluation network of the DARTS space: the cells of a genotype, trained from scratch (Liu et al. 2019, sec. 3.2).

An auxiliary head classifies the output of the second reduction cell; its weighted loss is added in training.
"""

from __future__ import annotations

from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.search.darts.cells import DropPath, GenotypeCell
from anynorm.lab.models.search.darts.genotype import NUM_NODES, Genotype, parse_genotype
from anynorm.lab.models.search.darts.layout import CellLayout, layout_cells, make_head, make_stem, reduction_cells

CHANNELS, NUM_CELLS = 36, 20
"""Number of channels C of the first cell, and number of cells, in the paper's evaluation on CIFAR-10."""


class EvaluationNetwork(nn.Module):
    """A network of the cells of a genotype.

    Args:
        shape: shape of the images, and the number of classes.
        genotype: the normal and the reduction cell.
        channels: number of channels C of the first cell.
        num_cells: number of cells.
        auxiliary: whether to add an auxiliary head.
    """

    def __init__(
        self,
        shape: DataShape,
        genotype: Genotype,
        *,
        channels: int = CHANNELS,
        num_cells: int = NUM_CELLS,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        layouts = layout_cells(num_cells, channels)
        self.stem = make_stem(shape, channels)
        self.cells = nn.ModuleList(
            GenotypeCell(layout, genotype.reduction if layout.reduces else genotype.normal) for layout in layouts
        )
        self.head = make_head(layouts, shape)
        self.auxiliary_position = reduction_cells(num_cells)[1]
        self.auxiliary = _make_auxiliary_head(layouts[self.auxiliary_position], shape) if auxiliary else None

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        return self.forward_both(x)[0]

    def forward_both(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits and the logits of the auxiliary head; the latter are None in eval mode or without such a head."""
        before = last = self.stem(x)
        auxiliary = None
        for index, cell in enumerate(self.cells):
            before, last = last, cell(before, last)
            if index == self.auxiliary_position and self.auxiliary is not None and self.training:
                auxiliary = self.auxiliary(last)
        return self.head(last), auxiliary

    def set_drop_path(self, p: float) -> None:
        """Set the probability of all DropPath modules."""
        for module in self.modules():
            if isinstance(module, DropPath):
                module.p = p


def _make_auxiliary_head(layout: CellLayout, shape: DataShape) -> nn.Sequential:
    """Return the auxiliary head; it was designed for maps of 8 × 8, and maps of other sizes are pooled to 2 × 2 too."""
    is_published = shape.height == shape.width == 32
    pool = nn.AvgPool2d(5, 3, count_include_pad=False) if is_published else nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(
        nn.ReLU(), pool,
        nn.Conv2d(NUM_NODES * layout.channels, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 768, 2, bias=False), nn.BatchNorm2d(768), nn.ReLU(),
        nn.Flatten(), nn.Linear(768, shape.num_classes),
    )  # fmt: skip


def evaluation_network(
    architecture: str, shape: DataShape, width: float = 1.0, num_cells: int = NUM_CELLS, *, auxiliary: bool = False
) -> EvaluationNetwork:
    """Return the untrained network of a genotype.

    Args:
        architecture: the genotype; see `anynorm.lab.models.search.darts.genotype`.
        shape: shape of the images, and the number of classes.
        width: multiplier of the 36 channels of the first cell.
        num_cells: number of cells.
        auxiliary: whether to add an auxiliary head.
    """
    channels = scale_channels(CHANNELS, width, 4)
    return EvaluationNetwork(shape, parse_genotype(architecture), channels=channels, num_cells=num_cells, auxiliary=auxiliary)
