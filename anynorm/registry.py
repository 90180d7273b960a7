"""The zoo: every named norm, one row each. A row is a class; its name works in specs, CLI, configs and reports.

To add a norm, add a row: `name`, the numbers it takes, what it stands for, and where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from anynorm.core import grammar as specs
from anynorm.core.cuts import nearest_groups
from anynorm.errors import SpecError
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY, RegisteredNorm, parse_with_options

_SN = "Luo et al. 2019 (sn)"
_SABN = "Gong et al. 2022 (sabn)"
_BGN = "Zhou et al. 2020 (bgn)"
_HN = "Heterologous Normalization 2021 (hn)"


class BatchNorm(RegisteredNorm):
    """Statistics of each channel over the batch (torch's BatchNorm1d to 3d in one)."""

    name, alias_of, paper = "bn", "[1,*,1]", "Ioffe & Szegedy 2015"


class InstanceNorm(RegisteredNorm):
    """Statistics of each channel of each sample."""

    name, alias_of, paper = "in", "[*,*,1]", "Ulyanov et al. 2016"


class LayerNorm(RegisteredNorm):
    """Statistics of each sample, over all channels and positions."""

    name, alias_of, paper = "ln", "[*,1,1]", "Ba et al. 2016"


class GroupNorm(RegisteredNorm):
    """Statistics of each group of channels of each sample."""

    name, alias_of, paper = "gn", "[*,{num_groups},1]", "Wu & He 2018"
    arguments = {"num_groups": 32}
    example = "gn:32"


class PositionalNorm(RegisteredNorm):
    """Statistics of each position of each sample, over its channels."""

    name, alias_of, paper = "pn", "[*,1,*]", "Li et al. 2019"


class ExtendedNorm(RegisteredNorm):
    """Statistics of the whole batch, or of each group of its channels."""

    name, alias_of, paper = "en", "[1,{num_groups},1]", _HN
    arguments = {"num_groups": 1}
    example = "en:32"
    variants = {"en": "EN: the statistics of the whole batch"}


class BatchGroupNorm(RegisteredNorm):
    """Statistics over the batch of channels × positions cut into G groups.

    Without a number, G follows the batch size as in the paper; where it does not fit, the nearest usable G below.
    """

    name, alias_of, paper = "bgn", "[1,{num_groups}]", _BGN
    arguments = {"num_groups": None}
    example = "bgn:512"
    GROUPS = {1: 1, 2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}

    @classmethod
    def rule(cls, argument: str, options: Mapping[str, Any]) -> int:
        """Take the group number of the largest tabled batch size that is not above this one (bgn sec. 4.1)."""
        batch_size, num_features = options.get("batch_size"), options.get("num_features")
        if batch_size is None:
            raise SpecError("bgn without a number follows the batch size: give batch_size=…, or the number, as in bgn:16.")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise SpecError(f"bgn got batch_size={batch_size!r}; it takes a whole number from 1.")
        groups = cls.GROUPS[max(size for size in cls.GROUPS if size <= batch_size)]
        return nearest_groups(groups, num_features) if num_features else groups


class GeneralBatchGroupNorm(RegisteredNorm):
    """Statistics of each group of channels over parts of the batch of a few samples each."""

    name, alias_of, paper = "gbgn", "[/{num_samples},{num_groups},1]", "Summers & Dinneen 2020"
    arguments = {"num_samples": None, "num_groups": None}
    example = "gbgn:8,32"


class HeteroNorm(RegisteredNorm):
    """BN's mean, with the deviation of a larger set of pixels."""

    name, alias_of, paper = "hn", "bn/en:{num_groups}", _HN
    arguments = {"num_groups": 1}
    example = "hn:32"
    variants = {
        "hn": "HN: the deviation of the whole batch",
        "bn/bn+en": "HN+SN: the variance learned between BN's and EN's",
        "bn/bn+ln+in": "HN+SN: BN's mean, SN's variance",
    }


class SwitchNorm(RegisteredNorm):
    """IN, LN and BN statistics, weighed by what the layer learns; with a number, groups of channels learn their own."""

    name, alias_of, paper = "sn", "in+ln+bn.groups:{num_groups}", _SN
    arguments = {"num_groups": 1}
    variants = {
        "sn:2": "group SN: two groups of channels with weights of their own",
        "sn.hard": "sparse SN: the cut of the largest weight alone",
        "sn-bn": "SN for one sample a device: BN dropped",
        "ln+gn": "SN's set in an LSTM",
    }


class ConditionalBatchNorm(RegisteredNorm):
    """BN with an affine of each class."""

    name, alias_of, paper = "ccbn", "bn.cc@{num_classes}", "Miyato et al. 2018"
    arguments = {"num_classes": None}
    example = "ccbn@10"


class SandwichBatchNorm(RegisteredNorm):
    """BN with a shared affine, then one of each class."""

    name, alias_of, paper = "sabn", "bn.sa@{num_classes}", _SABN
    arguments = {"num_classes": None}
    example = "sabn@10"


class AuxBatchNorm(RegisteredNorm):
    """A whole BN, statistics and affine, for each domain."""

    name, alias_of, paper = "auxbn", "bn.aux@{num_domains}", "Xie et al. 2020"
    arguments = {"num_domains": None}
    example = "auxbn@2"


class SandwichAuxBatchNorm(RegisteredNorm):
    """Statistics and affine of each domain, with a shared affine between."""

    name, alias_of, paper = "saauxbn", "bn.saaux@{num_domains}", _SABN
    arguments = {"num_domains": None}
    example = "saauxbn@2"


class AdaIN(RegisteredNorm):
    """IN, then the moments of a style."""

    name, alias_of, paper = "adain", "in.style", "Huang & Belongie 2017"


class SandwichAdaIN(RegisteredNorm):
    """IN, a shared affine, then the moments of a style."""

    name, alias_of, paper = "saadain", "in.sastyle", _SABN


def make(spec: str, num_features: int, **options: Any) -> Norm:
    """Make a norm from its spec.

    Args:
        options: torch's (eps, momentum, affine, track_running_stats, device, dtype), `population`, and numbers that the
            spec leaves open: num_groups, num_classes, num_domains, num_samples; batch_size for bgn.

    >>> make("hn:32", 64)
    HeteroNorm('hn:32', 64, eps=1e-05, momentum=0.1)
    >>> make("bgn", 48, batch_size=8).spec
    'bgn:16'
    """
    layer = {name: options.pop(name) for name in Norm.__init__.__kwdefaults__ or () if name in options}
    affine = options.pop("affine", True)
    parts = parse_with_options(spec, num_features, affine, options)
    row = REGISTRY[parts.custom.name] if parts.custom else specs.row_of(parts.name)
    norm: Norm = Norm.__new__(row or Norm)  # a row's own __init__ would parse once more
    Norm.__init__(norm, parts, num_features, **layer)
    if isinstance(norm, RegisteredNorm):
        norm.set({name: options[name] for name in norm.settings if name in options})
    return norm


class Entry(NamedTuple):
    """One line of the zoo."""

    spec: str
    norm: type[Norm]
    words: str
    paper: str


def summary(row: type[RegisteredNorm]) -> str:
    """Say in a few words what a row is."""
    return (row.__doc__ or "").splitlines()[0].rstrip(".")


def zoo() -> list[Entry]:
    """List every norm that has a name, and the papers' variants of them, each by a spec that can be made.

    >>> [entry.spec for entry in zoo()][:4]
    ['bn', 'in', 'ln', 'gn:32']
    """
    entries = []
    for row in specs.rows().values():
        if row.missing:
            continue
        words = summary(row)
        entries.append(Entry(row.example or row.name, row, words, row.paper))
        entries += [Entry(spec, specs.row_of(spec) or Norm, words, row.paper) for spec, words in row.variants.items()]
    return entries
