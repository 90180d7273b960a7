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

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.cuts import ALL
from anynorm.core.moments import Moments, pool_stacked
from anynorm.errors import SurgeryError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.new_norm import make_equivalent
from anynorm.surgery.undo import temporary_changes


class Span(NamedTuple):
    """A tile along one axis of the image: the positions that are read, and among them its own part."""

    start: int
    stop: int
    own_start: int
    own_stop: int

    def own(self, length: int) -> slice:
        """Return the own part in a feature map of the tile with `length` positions.

        Raises:
            SurgeryError: if the feature map is not the tile at a stride that divides the ends of the tile and of its own part.

        >>> Span(64, 192, 96, 160).own(32)
        slice(8, 24, None)
        """
        start, own_start, own_stop = self._scale(length)
        return slice(own_start - start, own_stop - start)

    def own_in_image(self, length: int) -> slice:
        """Return the own part in a feature map of the whole image, if that of the tile has `length` positions; see `own`."""
        return slice(*self._scale(length)[1:])

    def _scale(self, length: int) -> list[int]:
        """Return the start of the tile and the ends of its own part in units of the positions of a feature map."""
        size = self.stop - self.start
        ends = [position * length for position in self[:1] + self[2:]]
        has_stride = length and max(size, length) % min(size, length) == 0
        if not has_stride or any(end % size for end in ends):
            raise SurgeryError(
                f"the {size} pixels from {self.start} to {self.stop}, of which {self.own_start} to {self.own_stop} are the tile "
                f"without its halo, have {length} positions. tile, halo and the size of the image must be multiples of the total "
                "stride of the model, and its convolutions padded."
            )
        return [end // size for end in ends]


class _StatisticsCollected(BaseException):
    """Ends the run of a tile; not an `Exception`, so that the code of a model does not catch it."""


@dataclass
class TilePasses:
    """The passes over the tiles of an image; see `tiles`. Each iteration over this object is for one image.

    Attributes:
        spans: the spans of the current tile; None if all of its positions are its own, and the tile runs to the end.
    """

    spans: tuple[Span, ...] | None = None
    _fixed: list[Moments] = field(default_factory=list)
    _collected: Moments | None = None
    _num_tiles: int = 0
    _num_calls: int = 0
    _is_active: bool = False

    def __iter__(self) -> Iterator[int]:
        """Yield the number of norms whose statistics are known, in each pass; outputs of the last pass are those of the image.

        Raises:
            SurgeryError: if a pass has another number of tiles than the first.
        """
        self._fixed = []
        num_tiles: int | None = None
        while True:
            self._start_pass()
            try:
                yield len(self._fixed)
            finally:
                self._is_active = False
            if num_tiles is not None and num_tiles != self._num_tiles:
                raise SurgeryError(
                    f"every pass must run the same tiles; got {self._num_tiles} in pass {len(self._fixed) + 1}, and {num_tiles} "
                    "in the pass before."
                )
            num_tiles = self._num_tiles
            if self._collected is None:
                return
            self._fixed.append(self._collected)

    def _start_pass(self) -> None:
        self._collected, self._num_tiles, self._is_active = None, 0, True

    def start_tile(self) -> None:
        """Start a tile: the next norm that runs is the first."""
        self._num_calls, self._num_tiles = 0, self._num_tiles + 1

    def compute_output(
        self, path: str, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers
    ) -> tuple[Tensor, BatchStats]:
        """Compute the output of a norm by the statistics of the image, or collect them; replaces `Norm._compute_output`.

        Raises:
            SurgeryError: if there is no pass, or the own part of the tile cannot be found in x.
        """
        if not self._is_active:
            raise SurgeryError("Inside `with anynorm.tiles(model) as passes:`, tiles must run in a loop `for _ in passes:`.")
        index, self._num_calls = self._num_calls, self._num_calls + 1
        if index < len(self._fixed):
            moments = self._fixed[index]
            self._check_samples(path, moments, x)
        else:
            moments = kernels.moments(self._own_part(path, x), 1)
            if index == len(self._fixed):
                self._collect(path, moments, x)
        return kernels.normalize_by(spec, x, params, buffers, moments), BatchStats([None for _ in spec.uses_batch])

    def _own_part(self, path: str, x: Tensor) -> Tensor:
        if self.spans is None:
            return x
        if x.dim() != 2 + len(self.spans):
            raise SurgeryError(
                f"'{path}' got an input of shape {tuple(x.shape)}, whose positions are not those of the image. Tiles need norms "
                "of feature maps; leave other parts of the model out."
            )
        try:
            own = [span.own(length) for span, length in zip(self.spans, x.shape[2:], strict=True)]
        except SurgeryError as error:
            raise SurgeryError(f"Input of '{path}': {error}") from None
        return _crop(x, own)

    def _collect(self, path: str, moments: Moments, x: Tensor) -> None:
        moments = moments._replace(count=moments.count.expand_as(moments.mean))
        if self._collected is None:
            self._collected = moments
        else:
            self._check_samples(path, self._collected, x)
            self._collected = pool_stacked(Moments(*map(torch.stack, zip(self._collected, moments, strict=True))))
        if self.spans is not None:
            raise _StatisticsCollected

    @staticmethod
    def _check_samples(path: str, moments: Moments, x: Tensor) -> None:
        if len(moments.mean) != len(x):
            raise SurgeryError(
                f"Every tile must have the same images as the others; '{path}' got {len(x)} samples, and {len(moments.mean)} in "
                "the tile before."
            )


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
    with _collected_by(passes, model):
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
    windows = _windows(image, tile, halo)
    forward = forward or call
    if len(windows) == 1:
        check_model(model)
        _check_mode(model)
        with torch.no_grad():
            whole: Tensor = forward(model, image)
            return whole
    passes = TilePasses()
    output = None
    with _collected_by(passes, model):
        for _ in passes:
            for spans in windows:
                passes.spans = spans
                passes.start_tile()
                try:
                    y = forward(model, _crop(image, [slice(span.start, span.stop) for span in spans]))
                except _StatisticsCollected:
                    continue
                output = _write(output, y, spans, image)
    assert output is not None  # an image has at least one tile, and the last pass runs it to the end
    return output


def _windows(image: Tensor, tile: int | Sequence[int], halo: int | Sequence[int]) -> list[tuple[Span, ...]]:
    """Return the spans of the tiles of an image."""
    if not isinstance(image, Tensor) or image.dim() < 3 or not image.numel():
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise SurgeryError(f"image must be a tensor (n, c, …) with positions; got {got}.")
    space = image.shape[2:]
    sides, halos = _per_axis(tile, "tile", len(space), smallest=1), _per_axis(halo, "halo", len(space), smallest=0)
    axes = [
        [
            Span(max(start - margin, 0), min(start + side + margin, size), start, min(start + side, size))
            for start in range(0, size, side)
        ]
        for size, side, margin in zip(space, sides, halos, strict=True)
    ]
    return list(itertools.product(*axes))


def _crop(x: Tensor, slices: list[slice]) -> Tensor:
    """Return a part of the positions of x, as a view."""
    index: Any = (..., *slices)
    part: Tensor = x[index]
    return part


def _per_axis(value: Any, name: str, num_axes: int, *, smallest: int) -> list[int]:
    numbers = [value] * num_axes if isinstance(value, int) else list(value) if isinstance(value, Sequence) else []
    if len(numbers) != num_axes or not all(type(number) is int and number >= smallest for number in numbers):
        raise SurgeryError(f"{name} must be an integer of at least {smallest}, or {num_axes} of them; got {value!r}.")
    return numbers


def _write(output: Tensor | None, y: Any, spans: tuple[Span, ...], image: Tensor) -> Tensor:
    """Copy the own part of the output of a tile into the output of the image, which the first tile creates."""
    if not isinstance(y, Tensor) or y.dim() != 2 + len(spans):
        got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise SurgeryError(
            f"The output of the model must be a tensor (n, channels, …) with {len(spans)} axes of positions; got {got}. "
            "forward=… can select one."
        )
    lengths = y.shape[2:]
    try:
        own = [span.own(length) for span, length in zip(spans, lengths, strict=True)]
    except SurgeryError as error:
        raise SurgeryError(f"Output of the model: {error}") from None
    if output is None:
        sizes = zip(image.shape[2:], lengths, spans, strict=True)
        space = [size * length // (span.stop - span.start) for size, length, span in sizes]
        output = y.new_empty(*y.shape[:2], *space)
    _crop(output, [span.own_in_image(length) for span, length in zip(spans, lengths, strict=True)]).copy_(_crop(y, own))
    return output


@contextmanager
def _collected_by(passes: TilePasses, model: nn.Module) -> Iterator[None]:
    """Replace the outputs of norms whose statistics come from each input by those of `passes`, inside a `with` block."""
    check_model(model)
    _check_mode(model)
    norms = {site: site.module if isinstance(site.module, Norm) else make_equivalent(site) for site in _readable(model)}
    reading = {site: norm for site, norm in norms.items() if _reads_positions(site, norm)}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), temporary_changes() as undo_log:
        for site, norm in reading.items():
            if norm is not site.module:
                undo_log.replace(site, norm)
            vars(norm)["_compute_output"] = partial(passes.compute_output, site.path)
            undo_log.undo_steps.append(partial(vars(norm).pop, "_compute_output"))
        yield


def _check_mode(model: nn.Module) -> None:
    training = [path for path, module in model.named_modules() if module.training]
    if training:
        where = f"'{training[0]}'" if training[0] else "the model"
        raise SurgeryError(f"Tiles are for inference: call model.eval() first; got {where} in train mode.")


def _readable(model: nn.Module) -> list[NormSite]:
    sites = find_norms(model)
    for site in sites:
        if site.unsupported:
            raise SurgeryError(f"'{site.path}' ({site.label}) cannot be used with tiles: {site.unsupported}.")
        if not site.parents and not isinstance(site.module, Norm):
            raise SurgeryError(
                f"The model itself is a {site.label}: use nn.Sequential(model).eval(), or make it a layer of anynorm."
            )
    return sites


def _reads_positions(site: NormSite, norm: Norm) -> bool:
    """Whether the statistics of a norm come from the positions of each input.

    Raises:
        SurgeryError: if the norm cannot be computed from the moments of the samples of the whole image.
    """
    used = norm.used_cuts()
    reading = [cut for cut in used if cut.space != ALL and (norm.uses_batch or not cut.pools_samples)]
    is_overridden = type(norm)._compute_output is not Norm._compute_output
    reason = ""
    if any(cut.space not in (1, ALL) for cut in used):
        reason = "its statistics differ between parts of the positions"
    elif reading and any(cut.space == ALL for cut in used):
        reason = "it mixes statistics of each position with statistics of the image"
    elif norm.norm_spec.soft_assignment or (reading and is_overridden):
        reason = "it needs more of the image than means and variances"
    if reason:
        raise SurgeryError(f"'{site.path}' ({norm.spec}) cannot be used with tiles: {reason}. anynorm.convert replaces it.")
    return bool(reading)
