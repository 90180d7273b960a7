"""The detectors of xbn Tables 4, 5 and 6, and how they are trained."""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.sn import detectors as sn
from anynorm.lab.recipes.support.detection.settings import Detector
from anynorm.lab.recipes.support.presets import IMAGENET_XBN
from anynorm.lab.recipes.support.settings import Devices, Training

DESK_XBN = "xbn=gn:8;fpn=gn:8;heads=gn:8"
DESK_VARIANTS = {
    "bn, 2 per device": Detector("bn"),
    "gn, 2 per device": Detector("gn:8"),
    "xbn, 2 per device": Detector(DESK_XBN),
    "bn, 8 per device": Detector("bn", devices=Devices(1, 8)),
    "gn, 8 per device": Detector("gn:8"),  # GN does not depend on the division: the run of 2 per device
    "xbn, 8 per device": Detector(DESK_XBN, devices=Devices(1, 8)),
    "bn†, pretrained": Detector("bn;fpn=gn:8;heads=gn:8", pretrained="bn", frozen_submodule="backbone", masks=True),
    "gn, pretrained": Detector("gn:8", pretrained="gn:8", masks=True),
    "xbn, pretrained": Detector(DESK_XBN, pretrained="xbn=gn:8", masks=True),
}
"""The detectors of `desk`: `bn` and `xbn` from scratch differ in the norms of FPN and heads, and XBN is not frozen."""
LRS = (0.01, 0.02, 0.04)
"""The learning rates that Table 6 searches, at every number of images per device."""


def from_scratch(
    xbn: str, gn: str, divisions: dict[int, Devices], trainings: dict[int, Training] | None = None
) -> dict[str, Detector]:
    """Return the rows of Table 6: Faster R-CNN from scratch, with GN in FPN and heads in all rows.

    Args:
        xbn: the layout of XBN blocks, such as "xbn=gn:64".
        gn: the spec of GN.
        divisions: the division of a step by images per device.
        trainings: the training by images per device, with a search of the learning rate; None for the training of the settings.
    """
    result: dict[str, Detector] = {}
    for count, devices in divisions.items():
        training = None if trainings is None else trainings[count]
        base = Detector("", devices=devices, norm_free=sn.RPN, training=training, lrs=() if trainings is None else LRS)
        norms = {"bn": f"bn;fpn={gn};heads={gn}", "gn": gn, "xbn": f"{xbn};fpn={gn};heads={gn}"}
        result |= {f"{name}, {count} per device": replace(base, norm=norm) for name, norm in norms.items()}
    return result


def fine_tuned(xbn: str, gn: str, *, masks: bool = True, head: str = "") -> dict[str, Detector]:
    """Return the rows of Table 4 with the head "4conv1fc": GN in FPN and heads of `gn` and `xbn`, no norm there with BN†.

    All BN are frozen, as in the authors' code: that of XBN blocks too, whose GN is trained. The row "bn† + gn" is ours.

    Args:
        xbn: the layout of XBN blocks.
        gn: the spec of GN.
        masks: whether the detector is Mask R-CNN (Table 4) instead of Faster R-CNN (Table 5).
        head: what the names end with.
    """
    frozen = Detector("bn", pretrained="bn", frozen_submodule="backbone", masks=masks, norm_free=("fpn", "heads"))
    with_gn = f";fpn={gn};heads={gn}"
    return {
        f"bn†, pretrained{head}": frozen,
        f"bn† + gn, pretrained{head}": replace(frozen, norm=f"bn{with_gn}", norm_free=sn.RPN),
        f"gn, pretrained{head}": Detector(gn, pretrained=gn, masks=masks, norm_free=sn.RPN),
        f"xbn, pretrained{head}": replace(
            frozen, norm=f"{xbn}{with_gn}", pretrained=xbn, norm_free=sn.RPN, freeze_batch_free=False
        ),
    }


def two_layers(xbn: str, gn: str, training: Training, *, masks: bool = True, head: str = "") -> dict[str, Detector]:
    """Return the rows of Table 4 with the head "2fc": no norms in FPN and heads. See `fine_tuned` for the arguments."""
    options = replace(sn.COCO_OPTIONS, box_convs=0)
    training = replace(training, config=replace(training.config, options=options))
    rows = fine_tuned(xbn, gn, masks=masks, head=f"{head}, 2fc")
    return {
        name: replace(row, norm=row.pretrained or "", norm_free=("fpn", "heads"), training=training)
        for name, row in rows.items()
        if not name.startswith("bn† + gn")
    }


ONE_X = Training(sn.COCO_1X, base_batch_size=16)
NO_SCALING = {
    count: Training(replace(sn.COCO_1X, epochs=epochs, num_evals=12), base_batch_size=None)
    for count, epochs in {2: 12, 4: 25, 8: 49}.items()
}
"""About 90 000 steps with 16, 32 and 64 images of COCO's 117 266 per step; the learning rate is searched, not scaled."""
XBN_50 = "xbn.stem=gn:64"
"""The stem has GN too, as in the authors' code."""
PUBLISHED = (
    fine_tuned(XBN_50, "gn:32")
    | two_layers(XBN_50, "gn:32", ONE_X)
    | fine_tuned(XBN_50, "gn:32", masks=False, head=", Faster R-CNN")
    | two_layers(XBN_50, "gn:32", ONE_X, masks=False, head=", Faster R-CNN")
    | from_scratch(XBN_50, "gn:32", {2: Devices(8, 2), 4: Devices(8, 4), 8: Devices(8, 8)}, NO_SCALING)
)
NIGHT_DIVISIONS = {2: Devices(4, 2), 4: Devices(2, 4), 8: Devices(1, 8)}
"""Eight crops per step: the number of devices varies where the paper varies the number of images per step."""
PRESETS = {
    "smoke": replace(
        sn.PRESETS["smoke"],
        variants=from_scratch("xbn=gn:8", "gn:8", {2: Devices(2, 2)}) | fine_tuned("xbn=gn:8", "gn:8"),
    ),
    "desk": replace(sn.PRESETS["desk"], variants=DESK_VARIANTS),
    "night": replace(
        sn.PRESETS["night"],
        variants=from_scratch("xbn=gn:8", "gn:8", NIGHT_DIVISIONS)
        | {"bn everywhere, 2 per device": Detector("bn", norm_free=sn.RPN)}
        | fine_tuned("xbn=gn:8", "gn:8"),
    ),
    "paper": replace(sn.PRESETS["paper"], training=ONE_X, pretraining=IMAGENET_XBN, variants=PUBLISHED),
}
