"""The passes over the tiles of an image that collect the statistics of its norms, one norm after the other.

    pass k = 1, …, L    each tile runs up to norm k; norms 1, …, k − 1 use the statistics collected before
    pass L + 1          each tile runs through the whole model, whose L norms use the statistics of the image

The moments of each norm's input are those of the own parts of all tiles, pooled exactly (`core/moments.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.cuts import ALL
from anynorm.core.moments import Moments, pool_stacked
from anynorm.errors import SurgeryError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.new_norm import make_equivalent
from anynorm.surgery.tile_spans import Span, crop
from anynorm.surgery.undo import temporary_changes

_WITHOUT_MASK = "Run tiles without it, and set hidden pixels of the output to 0 afterwards."


class StatisticsCollected(BaseException):
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
            SurgeryError: if there is no pass, the norm has a mask, or the own part of the tile cannot be found in x.
        """
        if not self._is_active:
            raise SurgeryError("Inside `with anynorm.tiles(model) as passes:`, tiles must run in a loop `for _ in passes:`.")
        if buffers.ragged is not None:
            raise SurgeryError(f"'{path}' got a mask or batch_index, which tiles do not support. {_WITHOUT_MASK}")
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
        return crop(x, own)

    def _collect(self, path: str, moments: Moments, x: Tensor) -> None:
        moments = moments._replace(count=moments.count.expand_as(moments.mean))
        if self._collected is None:
            self._collected = moments
        else:
            self._check_samples(path, self._collected, x)
            self._collected = pool_stacked(Moments(*map(torch.stack, zip(self._collected, moments, strict=True))))
        if self.spans is not None:
            raise StatisticsCollected

    @staticmethod
    def _check_samples(path: str, moments: Moments, x: Tensor) -> None:
        if len(moments.mean) != len(x):
            raise SurgeryError(
                f"Every tile must have the same images as the others; '{path}' got {len(x)} samples, and {len(moments.mean)} in "
                "the tile before."
            )


@contextmanager
def collected_by(passes: TilePasses, model: nn.Module) -> Iterator[None]:
    """Replace the outputs of norms whose statistics come from each input by those of `passes`, inside a `with` block."""
    check_model(model)
    check_eval_mode(model)
    _check_no_mask(model)
    norms = {site: site.module if isinstance(site.module, Norm) else make_equivalent(site) for site in _readable(model)}
    reading = {site: norm for site, norm in norms.items() if _reads_positions(site, norm)}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), temporary_changes() as undo_log:
        for site, norm in reading.items():
            if norm is not site.module:
                undo_log.replace(site, norm)
            vars(norm)["_compute_output"] = partial(passes.compute_output, site.path)
            undo_log.undo_steps.append(partial(vars(norm).pop, "_compute_output"))
        yield


def _check_no_mask(model: nn.Module) -> None:
    """Check that no norm has the mask of an enclosing block, which would be resized to each tile."""
    for path, module in model.named_modules():
        if isinstance(module, Norm) and module.is_masked:
            raise SurgeryError(f"'{path}' has a mask (anynorm.mask), which tiles do not support. {_WITHOUT_MASK}")


def check_eval_mode(model: nn.Module) -> None:
    """Check that all modules of a model are in eval mode.

    Raises:
        SurgeryError: if one is not.
    """
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
