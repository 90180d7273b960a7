"""The norms of a supernet. Those of operations take the operations before them as a class, the others take none.

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
from anynorm.lab.training.norm_layout import set_num_classes
from anynorm.layers.norm import Norm
from anynorm.registry import parse
from anynorm.surgery.convert import replace_norms
from anynorm.surgery.find import NormSite, find_norms


def set_supernet_norms(supernet: Supernet, config: Config) -> None:
    """Replace the norms of a supernet by those of a run.

    Args:
        supernet: a supernet.
        config: the run; `config.norm` is a spec, or several that alternate.

    Raises:
        SpecError: if a norm takes a style, has fewer classes than there are operation codes, or has classes where there are none.
    """
    if config.norm.startswith("xbn"):
        raise SpecError(f"an XBN layout needs networks of residual blocks only, which a supernet is not; got {config.norm}.")
    codes = supernet.num_codes()
    texts = config.norm.split("~")
    chosen: dict[NormSite, str] = {}
    for number, site in enumerate(find_norms(supernet)):
        text = texts[number % len(texts)]
        num_codes = codes.get(site.path)
        resolved = set_num_classes(text, num_codes or 1)
        spec = parse(resolved, batch_size=config.batch_size)
        if num_codes is not None:
            _check_classes(spec, num_codes, site.path)
        chosen[site] = str(_with_plain_affine(spec)) if num_codes is None else resolved
    _check_is_conditioned(texts, codes)
    replace_norms(supernet, chosen, fit=None, groups="nearest", optimizer=None, options={"batch_size": config.batch_size})
    for module in supernet.modules():
        if isinstance(module, Norm):
            module.reset_parameters()  # γ of classes ~ N(1, 0.02); a replaced norm had γ = 1


def _with_plain_affine(spec: NormSpec) -> NormSpec:
    return spec if spec.affine == PLAIN_AFFINE else spec.with_affine("")


def _check_classes(spec: NormSpec, num_codes: int, path: str) -> None:
    if spec.takes_style:
        raise SpecError(f"a norm of a supernet must take operations as classes or no condition; got {spec}, which takes a style.")
    if spec.num_classes and spec.num_classes < num_codes:
        raise SpecError(
            f"{spec} has {spec.num_classes} classes; the operations before '{path}' have {num_codes} codes. "
            f"Usable: @{num_codes} or more, or @K for the number of each norm."
        )


def _check_is_conditioned(texts: list[str], codes: dict[str, int]) -> None:
    for text in texts:
        if not codes and parse(set_num_classes(text, 1), batch_size=1).num_classes:
            raise SpecError(f"{text} takes classes, and this supernet has no norms that are conditioned on operations.")
