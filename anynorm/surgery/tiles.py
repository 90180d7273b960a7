"""Inference of large images tile by tile, with the statistics of the whole image.

gn, in, ln and mixtures of them normalize a tile by the statistics of the tile, so its output is not that part of the output of
the image. The statistics of the image are pooled exactly from those of its tiles. Those of the k-th norm depend on the norms
before it, so they are collected one norm after the other:

    pass k = 1, …, L    each tile runs up to norm k; norms 1, …, k − 1 use the statistics collected before
    pass L + 1          each tile runs through the whole model, whose L norms use the statistics of the image

Two passes are enough for one norm only. `tiled` ends a tile at norm k, so that all passes cost about (L + 1) / 2 + 1 times the
inference of the image, times the share of the halos. One tile is in memory at a time.

A tile is read with a halo, so that convolutions see the true neighbors of its own part. Only its own part counts in the
statistics and is part of the output. The result is exact if the halo covers the receptive field of the model; this cannot be
checked in general. Layers other than norms that combine the whole image (global pooling, attention) see one tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import check_model
from anynorm.surgery.tile_passes import StatisticsCollected, TilePasses, check_eval_mode, collected_by
from anynorm.surgery.tile_spans import crop, windows, write


@contextmanager
def tiles(model: nn.Module) -> Iterator[TilePasses]:
    """Run the tiles of an image with the statistics of the whole image, in a loop of your own.

    Inside the block, norms whose statistics come from each input (gn, in, ln, …) use those of all tiles. Each call of the model
    is a tile, and all of its positions count, so tiles must not overlap. The outputs of the last pass are those of the whole
    image if no other layer of the model reads neighbors of a tile; `tiled` reads tiles with a halo.

    Args:
        model: the model, in eval mode; it is unchanged after the block.

    Yields:
        The passes: one for each call of such a norm in the model, and the last one. Each loop over them is for one image.

    Raises:
        SurgeryError: if a module is in train mode, a norm cannot be used with tiles, or passes differ in their tiles.

    >>> import anynorm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(), anynorm.make("in", 8)).eval()
    >>> image = torch.randn(1, 3, 64, 64)
    >>> with tiles(model) as passes:
    ...     for _ in passes:
    ...         outputs = [model(tile) for tile in image.split(16, dim=2)]
    >>> torch.allclose(torch.cat(outputs, dim=2), model(image), atol=1e-5)
    True
    """
    passes = TilePasses()
    with collected_by(passes, model):
        handle = model.register_forward_pre_hook(lambda *_: passes.start_tile())
        try:
            yield passes
        finally:
            handle.remove()


def tiled(
    model: nn.Module,
    image: Tensor,
    *,
    tile: int | Sequence[int] = 256,
    halo: int | Sequence[int] = 32,
    forward: Forward | None = None,
) -> Tensor:
    """Return the output of a model for a large image, computed tile by tile with the statistics of the whole image.

    Equal to `model(image)`, up to rounding, if the halo covers the receptive field of the model. Its output must have the
    positions of the image, or a fraction or multiple of them, as in segmentation or restoration.

    Args:
        model: the model, in eval mode; it is unchanged.
        image: the image or images, (n, c, …), such as (1, 3, 10000, 10000).
        tile: side of the part of the image that a tile computes, in pixels; one number, or one per axis.
        halo: number of pixels that a tile reads on each side in addition; one number, or one per axis. Tile, halo and size of the
            image must be multiples of the total stride of the model.
        forward: a function `forward(model, tile)` that returns the output; None to call the model. Use it to move tiles and
            outputs between devices.

    Raises:
        SurgeryError: if a module is in train mode, a norm cannot be used with tiles, an argument is invalid, sizes do not fit the
            strides of the model, or its output is not a tensor with positions.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)).eval()
    >>> image = torch.randn(1, 3, 80, 64)
    >>> torch.allclose(tiled(model, image, tile=32, halo=2), model(image), atol=1e-5)
    True
    """
    spans_of_tiles = windows(image, tile, halo)
    forward = forward or call
    if len(spans_of_tiles) == 1:
        check_model(model)
        check_eval_mode(model)
        with torch.no_grad():
            whole: Tensor = forward(model, image)
            return whole
    passes = TilePasses()
    output = None
    with collected_by(passes, model):
        for _ in passes:
            for spans in spans_of_tiles:
                passes.spans = spans
                passes.start_tile()
                try:
                    y = forward(model, crop(image, [slice(span.start, span.stop) for span in spans]))
                except StatisticsCollected:
                    continue
                output = write(output, y, spans, image)
    assert output is not None  # an image has at least one tile, and the last pass runs it to the end
    return output
