"""BatchNorm, GroupNorm, SwitchNorm and the other named norms that are made of cuts and an affine, one class per norm.

A new norm is one class: `name`, `paper`, the arguments of its spec, and `define`, which returns its definition. The name then
works in specs, on the command line, in configurations and in reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anynorm.core.cuts import ALL, AnyCut, Cut, JointCut, largest_usable_groups
from anynorm.core.mixing import Softmax
from anynorm.core.spec import NormSpec, check_positive_int
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers.registered import ClassNorm, DomainNorm, GroupedNorm, RegisteredNorm

_SN = "Luo et al. 2019 (sn)"
_SABN = "Gong et al. 2022 (sabn)"
_BGN = "Zhou et al. 2020 (bgn)"
_HN = "Heterologous Normalization 2021 (hn)"

BN = Cut(1, ALL, 1, name="bn")
IN = Cut(ALL, ALL, 1, name="in")
LN = Cut(ALL, 1, 1, name="ln")


def same_cut(cut: AnyCut) -> NormSpec:
    """Return a norm whose mean and variance use the same cut."""
    return NormSpec((cut,), (cut,))


class BatchNorm(RegisteredNorm):
    """Statistics per channel over the batch (torch's BatchNorm1d, 2d and 3d in one class)."""

    name, paper = "bn", "Ioffe & Szegedy 2015"
    use = "The usual choice in convolutional networks with 16 or more samples per device."
    define = staticmethod(lambda: same_cut(BN))


class InstanceNorm(RegisteredNorm):
    """Statistics per sample and channel.

    Unlike torch.nn.InstanceNorm2d, `affine` is True by default.
    """

    name, paper = "in", "Ulyanov et al. 2016"
    use = "Style transfer, and images whose contrast should not matter."
    define = staticmethod(lambda: same_cut(IN))


class LayerNorm(RegisteredNorm):
    """Statistics per sample, over all channels and positions.

    As torch.nn.GroupNorm(1, c), with an affine per channel; torch.nn.LayerNorm normalizes trailing axes instead.
    """

    name, paper = "ln", "Ba et al. 2016"
    use = "Recurrent networks, and any batch size. In convolutional networks gn is the usual choice among norms of each sample."
    define = staticmethod(lambda: same_cut(LN))


class GroupNorm(GroupedNorm):
    """Statistics per sample and group of channels.

    The order of arguments is (num_features, num_groups); that of torch.nn.GroupNorm is (num_groups, num_channels).
    """

    name, paper, example = "gn", "Wu & He 2018", "gn:32"
    use = "The usual answer when few samples fit on a device. Its output for a sample does not depend on the others."
    arguments = {"num_groups": 32}
    define = staticmethod(lambda num_groups: same_cut(Cut(ALL, num_groups, 1)))


class PositionalNorm(RegisteredNorm):
    """Statistics per sample and position, over the channels."""

    name, paper = "pn", "Li et al. 2019"
    use = "A baseline: normalizes the channels at each position, used in generative networks."
    define = staticmethod(lambda: same_cut(Cut(ALL, 1, ALL)))


class ExtendedNorm(GroupedNorm):
    """Statistics of the whole batch, or per group of its channels."""

    name, paper, example = "en", _HN, "en:32"
    use = "The standard deviation inside hn; alone, for batches that are too small for statistics of each channel."
    arguments = {"num_groups": 1}
    variants = {"en": "EN: the statistics of the whole batch"}
    define = staticmethod(lambda num_groups: same_cut(Cut(1, num_groups, 1)))


class BatchGroupNorm(RegisteredNorm):
    """Statistics over the batch of channels × positions cut into G groups.

    Without a number, G follows the batch size as in the paper; if that G does not fit the channels, the largest usable G below.

    Args:
        num_groups: G; None chooses it from `batch_size`.
        batch_size: the number of samples per device in training.
    """

    name, paper, example = "bgn", _BGN, "bgn:512"
    use = "Small batches: the smaller the batch, the fewer groups. Without a number, pass batch_size for the paper's choice."
    arguments = {"num_groups": None}
    GROUPS_BY_BATCH_SIZE = {1: 1, 2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        batch_size: int | None = None,
        update_rule: UpdateRule | None = None,
    ) -> None:
        arguments = {"num_groups": num_groups, "batch_size": batch_size}
        self._initialize(num_features, arguments, eps, momentum, affine, track_running_stats, device, dtype, update_rule)

    define = staticmethod(lambda num_groups: same_cut(JointCut(num_groups)))

    @classmethod
    def default_argument(cls, argument: str, keywords: Mapping[str, Any]) -> int:
        """Return the paper's number of groups for the largest tabled batch size that is at most this one (bgn sec. 4.1).

        Raises:
            SpecError: if the batch size is not given.
        """
        batch_size, num_features = keywords.get("batch_size"), keywords.get("num_features")
        if batch_size is None:
            raise SpecError(
                "bgn without a number needs the batch size: pass batch_size=…, or write the number of groups, as in bgn:16."
            )
        batch_size = check_positive_int(batch_size, "batch_size", cls.name)
        groups = cls.GROUPS_BY_BATCH_SIZE[max(size for size in cls.GROUPS_BY_BATCH_SIZE if size <= batch_size)]
        return largest_usable_groups(groups, num_features) if num_features else groups


class GeneralBatchGroupNorm(RegisteredNorm):
    """Statistics per group of channels and per part of the batch; each part has a few consecutive samples.

    Args:
        num_samples: the number of samples per part.
        num_groups: the number of groups of channels.
    """

    name, paper, example = "gbgn", "Summers & Dinneen 2020", "gbgn:8,32"
    use = "To study statistics of m samples, whatever the batch size (ghost batches)."
    arguments = {"num_samples": None, "num_groups": None}

    def __init__(
        self,
        num_features: int,
        num_samples: int,
        num_groups: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        update_rule: UpdateRule | None = None,
    ) -> None:
        arguments = {"num_samples": num_samples, "num_groups": num_groups}
        self._initialize(num_features, arguments, eps, momentum, affine, track_running_stats, device, dtype, update_rule)

    define = staticmethod(lambda num_samples, num_groups: same_cut(Cut(ALL, num_groups, 1, samples_per_part=num_samples)))


class HeteroNorm(GroupedNorm):
    """The mean of BN, with a standard deviation of a group of channels or of the whole batch."""

    name, paper, example = "hn", _HN, "hn:32"
    use = "Small batches, if inference should be that of BN: the mean is BN's, and the standard deviation fluctuates less."
    arguments = {"num_groups": 1}
    variants = {
        "hn": "HN: the standard deviation of the whole batch",
        "bn/bn+en": "HN+SN: a learned mixture of BN's and EN's variance",
        "bn/bn+ln+in": "HN+SN: BN's mean, SN's variance",
    }
    define = staticmethod(lambda num_groups: NormSpec((BN,), ExtendedNorm.named_spec({"num_groups": num_groups}).var))


class SwitchNorm(GroupedNorm):
    """A learned mixture of the statistics of IN, LN and BN; with several groups, each group of channels has its own weights."""

    name, paper = "sn", _SN
    use = "To let each layer learn which statistics suit it; sn-bn with one sample per device."
    arguments = {"num_groups": 1}
    variants = {
        "sn:2": "group SN: two groups of channels with their own mixing weights",
        "sn.hard": "sparse SN: the cut with the largest weight alone",
        "sn-bn": "SN for one sample per device: without BN",
        "ln+gn": "SN's cuts in an LSTM",
    }
    define = staticmethod(lambda num_groups: NormSpec((IN, LN, BN), (IN, LN, BN), mixing=Softmax(num_groups)))


class ConditionalBatchNorm(ClassNorm):
    """BN with an affine per class."""

    name, paper, example = "ccbn", "Miyato et al. 2018", "ccbn@10"
    use = "Class-conditional generators."
    define = staticmethod(lambda num_classes: same_cut(BN).with_affine("cc", num_classes))


class SandwichBatchNorm(ClassNorm):
    """BN with a shared affine, then one per class."""

    name, paper, example = "sabn", _SABN, "sabn@10"
    use = "As ccbn, with an affine that all classes train."
    define = staticmethod(lambda num_classes: same_cut(BN).with_affine("sa", num_classes))


class AuxBatchNorm(DomainNorm):
    """A separate BN, statistics and affine, per domain."""

    name, paper, example = "auxbn", "Xie et al. 2020", "auxbn@2"
    use = "Data of several domains whose statistics differ, such as clean and adversarial images."
    define = staticmethod(lambda num_domains: same_cut(BN).with_affine("aux", num_domains))


class SandwichAuxBatchNorm(DomainNorm):
    """Statistics per domain, then a shared affine, then one per domain."""

    name, paper, example = "saauxbn", _SABN, "saauxbn@2"
    use = "As auxbn, with an affine that all domains train."
    define = staticmethod(lambda num_domains: same_cut(BN).with_affine("saaux", num_domains))


class AdaIN(RegisteredNorm):
    """IN, then the moments of a style."""

    name, paper = "adain", "Huang & Belongie 2017"
    use = "Style transfer with any style."
    define = staticmethod(lambda: same_cut(IN).with_affine("style"))


class SandwichAdaIN(RegisteredNorm):
    """IN, a shared affine, then the moments of a style."""

    name, paper = "saadain", _SABN
    use = "As adain, with an affine that all styles train."
    define = staticmethod(lambda: same_cut(IN).with_affine("sastyle"))
