"""Claims about the AP of detectors, and the controls without which they mean nothing.

A detector has learned if it finds objects with the statistics it was trained with: those of each batch, if its norms have running
statistics. Its AP with running statistics says whether these fit, which is what the papers compare; it is no sign of learning.
A comparison of fine-tuned detectors is one of pretrained backbones too: it needs several of them per norm.
"""

from __future__ import annotations

from collections.abc import Sequence

from anynorm.lab.recipes.support.claims import Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.detection.settings import DetectionSettings
from anynorm.lab.recipes.support.quantities import Measured

MIN_AP = {"ellipses": 0.0, "nuclei": 15.0, "coco": 10.0}
"""AP in % from which a detector has learned, by data set: half of what trained detectors reach at least."""
MIN_BEST_AP = {"ellipses": 0.0, "nuclei": 25.0, "coco": 25.0}
"""AP in % that the best detector of a table must reach."""
MIN_CLASSIFIER_ACCURACY = {"cifar10": 40.0, "stream:imagenet": 60.0}
"""Test accuracy in % of a pretrained classifier, by data set."""


def data_name(settings: DetectionSettings) -> str:
    """Return the name of the data set of detectors, without a path."""
    return settings.training.config.data.partition(":")[0]


def higher_ap(
    norm: str,
    other: str,
    source: Source,
    published: Published | None = None,
    *,
    masks: bool = False,
    group: str = "",
    requires: Sequence[str] = (),
) -> Larger:
    """Return the claim that a detector has a higher AP than another.

    Args:
        norm: the name of the better detector.
        other: the name of the other one.
        source: where the claim is made.
        published: the paper's two APs.
        masks: whether it is the AP of masks instead of boxes.
        group: see `Larger`.
        requires: names of requirements.
    """
    column, metric = ("mask_ap", "mask AP") if masks else ("ap", "AP")
    return Larger(
        statement=f"`{norm}` has a higher {metric} than `{other}`",
        source=source,
        published=published,
        larger=Measured(column, {"norm": norm}),
        smaller=Measured(column, {"norm": other}),
        group=group,
        requires=tuple(requires),
    )


def needs_backbones(*norms: str) -> str:
    """Return the name of the requirement that detectors start from several backbones per norm."""
    return f"backbones per norm of {', '.join(norms)}"


def best_requirement(settings: DetectionSettings, norm: str, name: str) -> Requirement:
    """Return the requirement that the detector that is best in a table finds objects.

    Args:
        settings: the settings.
        norm: the detector.
        name: the name of the requirement.
    """
    return Requirement(name, Measured("ap", {"norm": norm}), MIN_BEST_AP[data_name(settings)])


def learned_controls(settings: DetectionSettings) -> list[Control]:
    """Return the controls that every detector, and every pretrained classifier, has learned."""
    at_least = MIN_AP[data_name(settings)]
    controls: list[Control] = []
    for name, detector in settings.variants.items():
        column = "ap_batch_statistics" if detector.has_running_stats else "ap"
        controls.append(Learned(at_least, column, "AP with the statistics of training (%)", {"norm": name}))
        if detector.pretrained is not None and settings.backbone_per_seed:
            accuracy = MIN_CLASSIFIER_ACCURACY.get((detector.pretraining or settings.pretraining).config.data, 0.0)
            controls.append(Learned(accuracy, "backbone_accuracy", "accuracy of the pretrained classifier (%)", {"norm": name}))
    return controls
