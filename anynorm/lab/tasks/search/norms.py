"""The norms of a supernet.

A norm inside an operation can be conditioned on the operations before it: each combination of these operations is a class. The
other norms take no condition.

"@K" in a spec is the number of classes of each norm: 5^j on an edge out of node j of NAS-Bench-201.

    bn.none                    no affine in operations, as in DARTS
    bn                         an affine
    ccbn@K, sabn@K             an affine per class; classes share running statistics
    auxbn@K, saauxbn@K         running statistics per class too

The norms of stem, residual blocks and classifier are the same norm with a plain affine. Batches have one class, so with batch
statistics, which a search uses, `auxbn@K` computes the same as `ccbn@K`, and `saauxbn@K` the same as `sabn@K`; only their
running statistics differ, and γ of `auxbn@K` starts at 1 instead of N(1, 0.02).
"""

from __future__ import annotations

from anynorm.core.spec import PLAIN_AFFINE, NormSpec
from anynorm.errors import SpecError
from anynorm.lab.models.search.supernet import Supernet
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_layout import Alternating, Layout
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite, find_norms
from anynorm.surgery.replace import replace_norms


def set_supernet_norms(supernet: Supernet, config: Config) -> None:
    """Replace the norms of a supernet by those of a run.

    Args:
        supernet: a supernet.
        config: the run; `config.norm` is a spec, or several that alternate.

    Raises:
        SpecError: if a norm takes a style, has fewer classes than conditions, or has classes where there are none.
    """
    conditions = supernet.num_conditions()
    layouts = {num: _alternating(config, num) for num in {1, *conditions.values()}}
    specs: dict[NormSite, NormSpec] = {}
    for index, site in enumerate(find_norms(supernet)):
        num_conditions = conditions.get(site.path)
        norms = layouts[num_conditions or 1].norms
        spec = norms[index % len(norms)]
        if num_conditions is not None:
            _check_classes(spec, num_conditions, site.path)
        specs[site] = _with_plain_affine(spec) if num_conditions is None else spec
    if not conditions:
        _check_is_unconditioned(layouts[1])
    replace_norms(supernet, specs, fit=None, groups="nearest", optimizer=None, options={})
    for module in supernet.modules():
        if isinstance(module, Norm):
            module.reset_parameters()  # γ of classes ~ N(1, 0.02); a replaced norm had γ = 1


def _alternating(config: Config, num_classes: int) -> Alternating:
    layout = Layout.parse(config.norm, config.batch_size, num_classes)
    if layout.submodules or not isinstance(layout.rest, Alternating):
        raise SpecError(f"norms of a supernet must be a spec, or several that alternate; got {config.norm}. Usable: bn, gn:4~bn.")
    return layout.rest


def _with_plain_affine(spec: NormSpec) -> NormSpec:
    return spec if spec.affine == PLAIN_AFFINE else spec.with_affine("")


def _check_classes(spec: NormSpec, num_conditions: int, path: str) -> None:
    if spec.takes_style:
        raise SpecError(f"a norm of a supernet must take operations as classes or no condition; got {spec}, which takes a style.")
    if spec.num_classes and spec.num_classes < num_conditions:
        raise SpecError(
            f"{spec} has {spec.num_classes} classes; the operations before '{path}' have {num_conditions} combinations. "
            f"Usable: @{num_conditions} or more, or @K for the number of each norm."
        )


def _check_is_unconditioned(layout: Alternating) -> None:
    for spec in layout.norms:
        if spec.num_classes:
            raise SpecError(f"{spec} takes classes, and this supernet has no norms that are conditioned on operations.")
