"""BatchNorm, GroupNorm, SwitchNorm and all other registered norms that are defined by cuts and an affine, one class per norm.

To add a norm, add a class with `name`, `paper`, the arguments of its spec, and `define`, a function that returns its definition.
The name can then be used in specs, on the command line, in configurations and in reports. Each docstring shows the equation:
μ[cut] and σ²[cut] are the mean and the biased variance of the parts of a cut (see `anynorm.core.cuts`), rms²[cut] is the mean of
x² of these parts, and k is the class or domain of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anynorm.core.cuts import ALL, AnyCut, Cut, JointCut, largest_usable_groups
from anynorm.core.mixing import Softmax
from anynorm.core.spec import SCALE_AFFINE, NormSpec, check_positive_int
from anynorm.errors import SpecError
from anynorm.layers.registered import ClassNorm, DomainNorm, GroupedNorm, RegisteredNorm, RegisteredOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SN = "Luo et al. 2019 (sn)"
_SABN = "Gong et al. 2022 (sabn)"
_BGN = "Zhou et al. 2020 (bgn)"
_HN = "Heterologous Normalization 2021 (hn)"

BN = Cut(1, ALL, 1, name="bn")
IN = Cut(ALL, ALL, 1, name="in")
LN = Cut(ALL, 1, 1, name="ln")
PN = Cut(ALL, 1, ALL, name="pn")


def same_cut(cut: AnyCut) -> NormSpec:
    """Return a norm whose mean and variance use the same cut."""
    return NormSpec((cut,), (cut,))


class BatchNorm(RegisteredNorm):
    """Statistics per channel over the batch (torch's BatchNorm1d, 2d and 3d in one class).

        y = γ (x − μ[bn])/√(σ²[bn] + ε) + β

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "bn", "Ioffe & Szegedy 2015"
    use = "The usual choice in convolutional networks with 16 or more samples per device."
    define = staticmethod(lambda: same_cut(BN))


class InstanceNorm(RegisteredNorm):
    """Statistics per sample and channel.

        y = γ (x − μ[in])/√(σ²[in] + ε) + β

    Unlike torch.nn.InstanceNorm2d, `affine` is True by default.
    """

    name, paper = "in", "Ulyanov et al. 2016"
    use = "Style transfer, and images whose contrast should not matter."
    define = staticmethod(lambda: same_cut(IN))


class LayerNorm(RegisteredNorm):
    """Statistics per sample, over all channels and positions.

        y = γ (x − μ[ln])/√(σ²[ln] + ε) + β

    Equal to torch.nn.GroupNorm(1, c), with an affine per channel; torch.nn.LayerNorm normalizes trailing axes instead.
    """

    name, paper = "ln", "Ba et al. 2016"
    use = "Recurrent networks, and any batch size. In convolutional networks, gn is the usual norm without batch statistics."
    define = staticmethod(lambda: same_cut(LN))


class GroupNorm(GroupedNorm):
    """Statistics per sample and group of channels.

        y = γ (x − μ[gn:g])/√(σ²[gn:g] + ε) + β

    The order of arguments is (num_features, num_groups), whereas torch.nn.GroupNorm has (num_groups, num_channels).
    """

    name, paper, example = "gn", "Wu & He 2018", "gn:32"
    use = "The usual choice if few samples fit on a device. The output of a sample does not depend on other samples."
    arguments = {"num_groups": 32}
    define = staticmethod(lambda num_groups: same_cut(Cut(ALL, num_groups, 1)))


class PositionalNorm(RegisteredNorm):
    """Statistics per sample and position, over the channels.

        y = γ (x − μ[pn])/√(σ²[pn] + ε) + β

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "pn", "Li et al. 2019"
    use = "A baseline: normalizes the channels at each position, used in generative networks."
    define = staticmethod(lambda: same_cut(PN))


class RMSNorm(RegisteredNorm):
    """The root mean square of the channels, per sample and position, without a mean and without β.

        y = γ x/√(rms²[pn] + ε)

    Numbers and state_dict of torch.nn.RMSNorm, whose channels are the last axis and whose ε is 1.2e-7 by default. For its
    arguments, see `RegisteredNorm`.
    """

    name, paper = "rms", "Zhang & Sennrich 2019"
    use = "The norm of most language models. Any cuts can have a mean of 0: `0/gn:32`, or `0/in`, the statistic of FRN."
    define = staticmethod(lambda: NormSpec((), (PN,), affine=SCALE_AFFINE))


class ExtendedNorm(GroupedNorm):
    """Statistics over the batch, per group of channels or over all channels.

        y = γ (x − μ[en:g])/√(σ²[en:g] + ε) + β

    For its arguments, see `GroupedNorm`.
    """

    name, paper, example = "en", _HN, "en:32"
    use = "Part of hn, which uses its standard deviation; alone, for batches that are too small for statistics per channel."
    arguments = {"num_groups": 1}
    variants = {"en": "EN: one mean and one variance for the whole batch"}
    define = staticmethod(lambda num_groups: same_cut(Cut(1, num_groups, 1)))


class BatchGroupNorm(RegisteredNorm):
    """Batch Group Normalization: statistics over the batch, per group of the flattened channels and positions.

        y = γ (x − μ[bgn:g])/√(σ²[bgn:g] + ε) + β

    Without `num_groups`, G is chosen from the batch size as in the paper; if that G does not fit the number of channels, the
    largest smaller G that does is used.

    Args:
        num_groups: number of groups G; None to choose it from `batch_size`.
        batch_size: number of samples per device in training.
    """

    name, paper, example = "bgn", _BGN, "bgn:512"
    use = "Small batches: the smaller the batch, the fewer groups. Without a number, pass batch_size for the paper's choice."
    arguments = {"num_groups": None}
    GROUPS_BY_BATCH_SIZE = {1: 1, 2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = None,
        *,
        batch_size: int | None = None,
        **options: Unpack[RegisteredOptions],
    ) -> None:
        self._initialize(num_features, {"num_groups": num_groups, "batch_size": batch_size}, **options)

    define = staticmethod(lambda num_groups: same_cut(JointCut(num_groups)))

    @classmethod
    def default_argument(cls, argument: str, keywords: Mapping[str, Any]) -> int:
        """Return the number of groups that the paper uses for a batch size (bgn sec. 4.1).

        For a batch size that is not in `GROUPS_BY_BATCH_SIZE`, the next smaller one in it is used.

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
        if num_features is None:
            return groups
        return largest_usable_groups(groups, check_positive_int(num_features, "num_features", cls.name))

    @classmethod
    def nearest_groups(cls, num_groups: int, num_features: int) -> int:
        """Return the largest usable number of groups up to `num_groups`."""
        return largest_usable_groups(num_groups, num_features)


class GeneralBatchGroupNorm(RegisteredNorm):
    """Statistics per group of channels and part of the batch, where each part has a few consecutive samples.

        y = γ (x − μ[gbgn:m,g])/√(σ²[gbgn:m,g] + ε) + β

    Args:
        num_samples: number of samples per part.
        num_groups: number of groups of channels.
    """

    name, paper, example = "gbgn", "Summers & Dinneen 2020", "gbgn:8,32"
    use = "Studies of statistics over m samples, independent of the batch size (ghost batches)."
    arguments = {"num_samples": None, "num_groups": None}

    def __init__(self, num_features: int, num_samples: int, num_groups: int, **options: Unpack[RegisteredOptions]) -> None:
        self._initialize(num_features, {"num_samples": num_samples, "num_groups": num_groups}, **options)

    define = staticmethod(lambda num_samples, num_groups: same_cut(Cut(ALL, num_groups, 1, samples_per_part=num_samples)))


class HeteroNorm(GroupedNorm):
    """Heterologous Normalization: the mean of BN, with the standard deviation of a group of channels or of the whole batch.

        y = γ (x − μ[bn])/√(σ²[en:g] + ε) + β

    For its arguments, see `GroupedNorm`.
    """

    name, paper, example = "hn", _HN, "hn:32"
    use = "Small batches, with inference as in BN: the mean is that of BN, and the standard deviation fluctuates less."
    arguments = {"num_groups": 1}
    variants = {
        "hn": "HN: the standard deviation of the whole batch",
        "bn/bn+en": "HN+SN: BN's mean, a learned mixture of BN's and EN's variance",
        "bn/bn+ln+in": "HN+SN: BN's mean, SN's variance",
    }
    define = staticmethod(lambda num_groups: NormSpec((BN,), ExtendedNorm.named_spec({"num_groups": num_groups}).var))


class SwitchNorm(GroupedNorm):
    """Switchable Normalization: a learned mixture of the statistics of IN, LN and BN.

        mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]
        var  = w′[in] σ²[in] + w′[ln] σ²[ln] + w′[bn] σ²[bn]
        y    = γ (x − mean)/√(var + ε) + β
        w, w′ = softmax(λ)

    For its arguments, see `GroupedNorm`.
    """

    name, paper = "sn", _SN
    use = "To let each layer learn which statistics suit it; sn-bn with one sample per device."
    arguments = {"num_groups": 1}
    variants = {
        "sn:2": "group SN: two groups of channels with their own mixing weights",
        "sn.hard": "sparse SN: only the cut with the largest weight",
        "sn-bn": "SN for one sample per device: without BN",
        "ln+gn": "SN's cuts in an LSTM",
    }
    define = staticmethod(lambda num_groups: NormSpec((IN, LN, BN), (IN, LN, BN), mixing=Softmax(num_groups)))


class ConditionalBatchNorm(ClassNorm):
    """BN with an affine per class.

        y = γ[k] (x − μ[bn])/√(σ²[bn] + ε) + β[k]

    For its arguments, see `ClassNorm`.
    """

    name, paper, example = "ccbn", "Miyato et al. 2018", "ccbn@10"
    use = "Class-conditional generators."
    define = staticmethod(lambda num_classes: same_cut(BN).with_affine("cc", num_classes))


class SandwichBatchNorm(ClassNorm):
    """Sandwich Batch Normalization: BN with a shared affine followed by an affine per class.

        y = γ[k] (γ (x − μ[bn])/√(σ²[bn] + ε) + β) + β[k]

    For its arguments, see `ClassNorm`.
    """

    name, paper, example = "sabn", _SABN, "sabn@10"
    use = "Class-conditional generators: as ccbn, with an additional affine shared by all classes."
    define = staticmethod(lambda num_classes: same_cut(BN).with_affine("sa", num_classes))


class AuxBatchNorm(DomainNorm):
    """Auxiliary Batch Normalization: BN with separate statistics and a separate affine per domain.

        y = γ[k] (x − μ[bn])/√(σ²[bn] + ε) + β[k]

    μ and σ² are those of domain k, the domain of the sample.
    """

    name, paper, example = "auxbn", "Xie et al. 2020", "auxbn@2"
    use = "Data of several domains whose statistics differ, such as clean and adversarial images."
    define = staticmethod(lambda num_domains: same_cut(BN).with_affine("aux", num_domains))


class SandwichAuxBatchNorm(DomainNorm):
    """Sandwich Auxiliary Batch Normalization: BN with statistics per domain, a shared affine, and an affine per domain.

        y = γ[k] (γ (x − μ[bn])/√(σ²[bn] + ε) + β) + β[k]

    μ and σ² are those of domain k, the domain of the sample.
    """

    name, paper, example = "saauxbn", _SABN, "saauxbn@2"
    use = "As auxbn, with an additional affine shared by all domains."
    define = staticmethod(lambda num_domains: same_cut(BN).with_affine("saaux", num_domains))


class AdaIN(RegisteredNorm):
    """Adaptive Instance Normalization: IN, scaled and shifted by the standard deviation and mean of a style.

        y = σ(style) (x − μ[in])/√(σ²[in] + ε) + μ(style)

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "adain", "Huang & Belongie 2017"
    use = "Style transfer with any style."
    define = staticmethod(lambda: same_cut(IN).with_affine("style"))


class SandwichAdaIN(RegisteredNorm):
    """Sandwich Adaptive Instance Normalization: AdaIN with a shared affine before the moments of the style.

        y = σ(style) (γ (x − μ[in])/√(σ²[in] + ε) + β) + μ(style)

    For its arguments, see `RegisteredNorm`.
    """

    name, paper = "saadain", _SABN
    use = "As adain, with an additional affine shared by all styles."
    define = staticmethod(lambda: same_cut(IN).with_affine("sastyle"))
