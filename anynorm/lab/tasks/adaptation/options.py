"""The options of domain adaptation."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class AdaptationOptions(Options):
    """The options of the tasks `source_only` and `adabn`, which every domain adaptation has."""

    target: str = option("digits-faded", "data set of the target domain; see `anynorm.lab.tasks.adaptation.data`.")
    fit_images: int = option(
        0,
        "number of source images on which γ and β of new norms are fitted to the outputs of the norms that they replace, for "
        "pretrained models (`anynorm.convert(fit=…)`); 0 for none.",
        minimum=0,
    )


@dataclass(frozen=True)
class LoopOptions(AdaptationOptions):
    """The options of adaptation in loops, `anynorm.lab.tasks.adaptation.loops.LoopedAdaptation`."""

    source_epochs: int = option(5, "number of epochs of training on the source alone, out of `config.epochs`.", minimum=0)
    steps_per_loop: int = option(40, "number of steps between two assignments of labels to images of the target.", minimum=1)
    adaptation_lr: float = option(0.0, "learning rate after the training on the source; 0 for `config.lr`.", minimum=0)
    head_lr_factor: float = option(
        1.0, "factor of the learning rate of the last layer after the training on the source.", minimum=0
    )
    decay_steps: int = option(
        0,
        "number of updates after which the learning rate of the adaptation is multiplied by decay_rate, repeatedly; 0 for the "
        "schedule of the run.",
        minimum=0,
    )
    decay_rate: float = option(0.1, "factor of the learning rate of the adaptation after decay_steps updates.", above=0)
    max_loops: int = option(0, "number of loops after which the adaptation stops; 0 for as many as the epochs have.", minimum=0)
    recalibrate: bool = option(
        False,
        "whether domain-specific running statistics of the target are estimated on its images before the first loop, instead of "
        "starting as those of the source.",
    )


@dataclass(frozen=True)
class DSBNOptions(LoopOptions):
    """The options of `anynorm.lab.tasks.adaptation.loops.DSBN`."""

    recalibrate: bool = option(
        True,
        "whether domain-specific running statistics of the target are estimated on its images before the first loop, instead of "
        "starting as those of the source.",
    )


@dataclass(frozen=True)
class CANOptions(LoopOptions):
    """The options of `anynorm.lab.tasks.adaptation.can.CAN`."""

    cdd_weight: float = option(
        0.3, "weight of the contrastive loss, the contrastive domain discrepancy (`anynorm.lab.tasks.adaptation.cdd`)."
    )
    classes_per_batch: int = option(10, "number of random classes in a batch of the contrastive loss.", minimum=2)
    samples_per_class: int = option(3, "number of images per class and domain in a batch of the contrastive loss.", minimum=1)
    max_distance: float = option(
        1.0,
        "distance from its cluster center, in [0, 1], at which an image of the target loses its label, D₀ of the paper; 1 to "
        "keep all labels.",
    )
    stop_distance: float = option(
        0.0,
        "mean distance between the class centers of source and target, in [0, 1], below which the adaptation stops; 0 for never.",
        minimum=0,
    )
    min_samples: int = option(3, "minimum number of labeled target images of a class in the contrastive loss.", minimum=1)
