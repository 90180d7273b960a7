"""Settings of recipes of detection: detectors with norms in their parts, pretrained backbones, and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynorm.lab.recipes.support.settings import Devices, Training, TrainingSettings
from anynorm.lab.training.norm_layout import Layout, XBNBlocks

PARTS = ("backbone", "fpn", "heads")


@dataclass(frozen=True)
class Detector:
    """The norms of a detector, its training, and the division of samples over devices.

    Args:
        norm: layout of the norms, such as "bn;fpn=gn:8;heads=gn:8".
        devices: number of devices and of samples per device; None for that of the settings.
        sync: whether norms pool the samples of all devices; simulated devices are then replaced by one with all samples.
        pretrained: norms of the classifier from which the backbone is initialized; None to train from scratch.
        frozen_submodule: path of the submodule of the detector whose norms are frozen; "" for none.
        masks: whether the detector is Mask R-CNN instead of Faster R-CNN.
        freeze_batch_free: whether norms of `frozen_submodule` without running statistics are frozen too.
        norm_free: parts of the detector without norms, such as ("fpn", "heads").
        fpn: whether the detector has a feature pyramid; if not, it is of type C4.
        training: how the detector is trained; None for the training of the settings.
        pretraining: how its classifier is trained; None for the pretraining of the settings.
        lrs: learning rates that are tried; the run with the best AP counts, as in the xbn paper. Empty for that of the training.
    """

    norm: str
    devices: Devices | None = None
    sync: bool = False
    pretrained: str | None = None
    frozen_submodule: str = ""
    masks: bool = False
    freeze_batch_free: bool = True
    norm_free: tuple[str, ...] = ()
    fpn: bool = True
    training: Training | None = None
    pretraining: Training | None = None
    lrs: tuple[float, ...] = ()

    @property
    def has_running_stats(self) -> bool:
        """Whether a norm that is not frozen has running statistics, so that training and inference differ."""
        layout = Layout.parse(self.norm)
        without = {self.frozen_submodule, *self.norm_free}
        if not self.fpn:  # the last stage of the backbone is in the box head, and frozen with it
            without |= {"fpn", "heads"} if {"backbone", "heads.rpn"} <= without else {"fpn"}
        trained = [layout.of_submodule(part).rest for part in PARTS if part not in without]
        return any(
            isinstance(norms, XBNBlocks) or any(cut.pools_samples for norm in norms.norms for cut in (*norm.mean, *norm.var))
            for norms in trained
        )


@dataclass(frozen=True, kw_only=True)
class DetectionSettings(TrainingSettings):
    """Settings of detection.

    Args:
        pretraining: how the classifiers are trained from which backbones are initialized.
        variants: detectors by name.
        devices: number of devices and of samples per device.
        simulate_devices: see `divide_samples`.
        backbone_per_seed: whether each seed has a pretrained backbone of its own; if not, all seeds start from the same one, and
            are no replications of what depends on pretraining.
        has_weights: whether rows have AP curves, and the mixing weights of SN, layer by layer.
    """

    pretraining: Training
    variants: Mapping[str, Detector]
    devices: Devices
    simulate_devices: bool
    backbone_per_seed: bool = False
    has_weights: bool = False

    @property
    def num_devices(self) -> int:
        """The largest number of devices that train one run together."""
        divisions = [self.devices, *(variant.devices for variant in self.variants.values() if variant.devices)]
        return 1 if self.simulate_devices else max(devices.num_devices for devices in divisions)

    @property
    def num_backbones(self) -> int:
        """The number of backbones that are pretrained per norm."""
        return self.seeds if self.backbone_per_seed else 1
