"""Faster R-CNN and Mask R-CNN.

    images ─▶ backbone ─▶ fpn ─▶ heads.rpn ─▶ proposals ─▶ RoIAlign ─▶ heads.box ─▶ classes, boxes ─▶ RoIAlign ─▶ heads.mask

`backbone`, `fpn` and `heads` are the parts of a layout of norms, such as "bn;heads=gn:8" (`anynorm.lab.training.norm_layout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from anynorm.lab.tasks.detection.networks import ops
from anynorm.lab.tasks.detection.networks.boxes import BOX_HEAD_WEIGHTS, box_iou, clip_boxes, decode, encode, is_large
from anynorm.lab.tasks.detection.networks.heads import MASK_RESOLUTION, Heads
from anynorm.lab.tasks.detection.networks.losses import box_loss, mask_loss, mask_targets
from anynorm.lab.tasks.detection.networks.matching import match, sample
from anynorm.lab.tasks.detection.networks.paste import paste_masks
from anynorm.lab.tasks.detection.networks.roi_align import assign_levels

Target = Mapping[str, Tensor]
"""The objects of one image: boxes (n, 4), labels (n,) from 0 and, for masks, masks (n, h, w) of bool."""
Losses = dict[str, Tensor]


class Detector(nn.Module):
    """A detector with torchvision's interface: `detector(images)` and `detector(images, targets)`.

    Args:
        backbone: network that returns the features of each stage, finest first.
        fpn: feature pyramid; None to use only the features of the last stage (C4).
        heads: the heads of proposals and regions.
        strides: strides of the levels from which regions are pooled.
        regions_per_image: sampled regions per image in the losses.
        positive_fraction: maximum fraction of positive regions.
        score_threshold: minimum score of a detection.
        nms_threshold: IoU above which the detection with the lower score is dropped.
        max_detections: maximum number of detections per image.
    """

    def __init__(
        self,
        backbone: nn.Module,
        fpn: nn.Module | None,
        heads: Heads,
        *,
        strides: Sequence[int],
        regions_per_image: int = 512,
        positive_fraction: float = 0.25,
        score_threshold: float = 0.05,
        nms_threshold: float = 0.5,
        max_detections: int = 100,
    ) -> None:
        super().__init__()
        self.backbone, self.fpn, self.heads = backbone, fpn, heads
        self.strides, self.regions_per_image, self.positive_fraction = tuple(strides), regions_per_image, positive_fraction
        self.score_threshold, self.nms_threshold, self.max_detections = score_threshold, nms_threshold, max_detections

    def forward(
        self, images: Tensor | Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> list[dict[str, Tensor]] | Losses:
        """Return the detections of each image or, with targets, the losses.

        Args:
            images: standardized, (n, c, h, w), or a list of images (c, h, w) of any sizes.
            targets: the objects of each image; None for detections.

        Returns:
            Per image a dictionary of boxes (k, 4), labels (k,) from 0, scores (k,) and, with a mask head, masks (k, 1, h, w) in
            [0, 1], by decreasing score. With targets: losses by name; train on their sum.
        """
        x, image_sizes = stack_images(images, max(self.heads.rpn.strides))
        features = self.features(x)
        prediction = self.heads.rpn(features)
        proposals = self.heads.rpn.propose(prediction, image_sizes)
        if targets is None:
            return self.detect(features, proposals, image_sizes)
        losses = self.heads.rpn.losses(prediction, [target["boxes"] for target in targets])
        return losses | self.region_losses(features, proposals, targets)

    def features(self, x: Tensor) -> list[Tensor]:
        """Return the features of images, finest first."""
        stages: list[Tensor] = self.backbone(x)
        return stages[-1:] if self.fpn is None else self.fpn(stages)

    def pool(self, features: list[Tensor], boxes: Sequence[Tensor], resolution: int) -> Tensor:
        """Pool the features of regions, given as boxes per image, to (k, c, resolution, resolution)."""
        regions = torch.cat([pad(each, (1, 0), value=float(index)) for index, each in enumerate(boxes)])
        levels = assign_levels(regions[:, 1:], self.strides)
        return ops.roi_align(features[: len(self.strides)], self.strides, regions, resolution, levels)

    # Training -----------------------------------------------------------------------------------------------------------------

    def region_losses(self, features: list[Tensor], proposals: Sequence[Tensor], targets: Sequence[Target]) -> Losses:
        """Return the losses of class, box and mask over randomly sampled regions."""
        samples = [self.choose(*each) for each in zip(proposals, targets, strict=True)]
        boxes, labels, matched = ([each[part] for each in samples] for part in range(3))
        hidden = self.heads.box.body(self.pool(features, boxes, self.heads.box.resolution))
        logits, deltas = self.heads.box.predict(hidden)
        label, box = torch.cat(labels), torch.cat(boxes)
        positive = (label < self.heads.box.num_classes).nonzero()[:, 0]
        objects = torch.cat([target["boxes"][each[each >= 0]] for target, each in zip(targets, matched, strict=True)])
        expected = encode(objects, box[positive], BOX_HEAD_WEIGHTS)
        losses = {
            "loss_classifier": cross_entropy(logits, label),
            "loss_box_reg": box_loss(deltas[positive, label[positive]], expected, len(label)),
        }
        if self.heads.mask is not None:
            losses["loss_mask"] = self.mask_losses(features, hidden, samples, targets)
        return losses

    def choose(self, proposals: Tensor, target: Target) -> tuple[Tensor, Tensor, Tensor]:
        """Sample the regions of an image for the losses; return them, their labels, and the indices of their objects.

        Boxes of objects are added to the proposals. Background has the label num_classes and the object index −1.
        """
        boxes = torch.cat([proposals, target["boxes"]])
        matched = match(box_iou(boxes, target["boxes"]), high=0.5, low=0.5, allow_low_quality_matches=False)
        positive, negative = sample(matched, self.regions_per_image, self.positive_fraction)
        labels = torch.cat([target["labels"][matched[positive]], torch.full_like(negative, self.heads.box.num_classes)])
        chosen = torch.cat([positive, negative])
        return boxes[chosen], labels, matched[chosen]

    def mask_losses(
        self,
        features: list[Tensor],
        hidden: Tensor,
        samples: Sequence[tuple[Tensor, Tensor, Tensor]],
        targets: Sequence[Target],
    ) -> Tensor:
        """Return the mask loss of positive regions.

        Without positive regions, it is 0 times that of the first region, so that every parameter has a gradient in every process.
        """
        has_object = [matched >= 0 for _, _, matched in samples]
        weight = float(any(bool(each.any()) for each in has_object))
        if not weight:
            has_object[0][0] = True
        boxes = [box[chosen] for (box, _, _), chosen in zip(samples, has_object, strict=True)]
        labels = torch.cat([label[chosen] for (_, label, _), chosen in zip(samples, has_object, strict=True)])
        logits = self.mask_logits(features, boxes, hidden[torch.cat(has_object)])
        if not weight:
            return 0 * logits.sum()
        expected = [
            mask_targets(target["masks"][matched[chosen]], box, logits.shape[-1])
            for target, (_, _, matched), chosen, box in zip(targets, samples, has_object, boxes, strict=True)
        ]
        return mask_loss(logits.float(), labels, torch.cat(expected))

    def mask_logits(self, features: list[Tensor], boxes: Sequence[Tensor], hidden: Tensor | None = None) -> Tensor:
        """Return the logits of the masks of regions, (k, classes, s, s).

        Args:
            features: features of the images.
            boxes: regions of each image.
            hidden: output of the body of the box head for these regions, if it was computed.
        """
        mask = self.heads.mask
        assert mask is not None  # callers check
        if self.heads.mask_after_box:
            if hidden is None:
                hidden = self.heads.box.body(self.pool(features, boxes, self.heads.box.resolution))
            logits: Tensor = mask(hidden)
        else:
            logits = mask(self.pool(features, boxes, MASK_RESOLUTION))
        return logits

    # Inference ----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def detect(self, features: list[Tensor], proposals: Sequence[Tensor], image_sizes: Tensor) -> list[dict[str, Tensor]]:
        """Return the detections of each image; see `forward`."""
        logits, deltas = self.heads.box(self.pool(features, proposals, self.heads.box.resolution))
        boxes = decode(deltas, torch.cat(list(proposals)), BOX_HEAD_WEIGHTS)
        counts = [len(each) for each in proposals]
        pairs = zip(boxes.split(counts), logits.softmax(1)[:, :-1].split(counts), image_sizes.tolist(), strict=True)  # type: ignore[no-untyped-call]
        detections = [self._best(clip_boxes(box, height, width), scores) for box, scores, (height, width) in pairs]
        if self.heads.mask is not None and any(len(each["boxes"]) for each in detections):
            self._add_masks(detections, features, image_sizes)
        elif self.heads.mask is not None:
            for each, (height, width) in zip(detections, image_sizes.tolist(), strict=True):
                each["masks"] = boxes.new_zeros(0, 1, height, width)
        return detections

    def _best(self, boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """Return the detections of an image from the boxes (k, classes, 4) and scores (k, classes) of its proposals."""
        usable = (scores > self.score_threshold) & is_large(boxes, 1e-2)
        region, label = usable.nonzero(as_tuple=True)
        box, score = boxes[region, label], scores[region, label]
        kept = ops.nms(box, score, label, self.nms_threshold)[: self.max_detections]
        return {"boxes": box[kept], "labels": label[kept], "scores": score[kept]}

    def _add_masks(self, detections: list[dict[str, Tensor]], features: list[Tensor], image_sizes: Tensor) -> None:
        logits = self.mask_logits(features, [each["boxes"] for each in detections])
        labels = torch.cat([each["labels"] for each in detections])
        masks = logits[torch.arange(len(labels), device=labels.device), labels].float().sigmoid()
        parts = masks.split([len(each["labels"]) for each in detections])  # type: ignore[no-untyped-call]
        for each, part, (height, width) in zip(detections, parts, image_sizes.tolist(), strict=True):
            each["masks"] = paste_masks(part, each["boxes"], height, width)[:, None]


def stack_images(images: Tensor | Sequence[Tensor], stride: int) -> tuple[Tensor, Tensor]:
    """Return images as one batch, padded with zeros at the right and the bottom, and their heights and widths.

    Args:
        images: (n, c, h, w), or a list of images (c, h, w).
        stride: height and width of the batch are multiples of this number.

    >>> batch, sizes = stack_images([torch.ones(3, 30, 20), torch.ones(3, 16, 40)], 16)
    >>> batch.shape, sizes.tolist()
    (torch.Size([2, 3, 32, 48]), [[30, 20], [16, 40]])
    """
    sizes = torch.tensor([image.shape[1:] for image in images], device=images[0].device)
    height, width = (-(-size // stride) * stride for size in sizes.amax(0).tolist())
    if isinstance(images, Tensor) and images.shape[2:] == (height, width):
        return images, sizes
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for image, row in zip(images, batch, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return batch, sizes
