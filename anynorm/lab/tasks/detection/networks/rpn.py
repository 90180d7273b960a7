"""Region proposal network (Ren et al. 2015, sec. 3.1): a score and a box per anchor; the best are proposals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from anynorm.lab.tasks.detection.networks import ops
from anynorm.lab.tasks.detection.networks.anchors import base_anchors, grid_anchors
from anynorm.lab.tasks.detection.networks.boxes import RPN_WEIGHTS, box_iou, clip_boxes, decode, encode, is_large
from anynorm.lab.tasks.detection.networks.fpn import init_predictor
from anynorm.lab.tasks.detection.networks.losses import box_loss
from anynorm.lab.tasks.detection.networks.matching import match, sample

MIN_SIZE = 1.0
"""Minimum side of a proposal, in pixels."""


class Prediction(NamedTuple):
    """The output for anchors, in the order (y, x, anchor): scores (n, a), deltas (n, a, 4), and the anchors (a, 4), per level."""

    scores: list[Tensor]
    deltas: list[Tensor]
    anchors: list[Tensor]


class RPN(nn.Module):
    """The head of the region proposal network, shared by all levels.

    Its convolutions are shared, its norms are not: with one BN for all levels, each level would be normalized by its own
    statistics in training, but all levels by one set of running statistics in inference. The paper uses no norm here.

    Args:
        in_channels: channels of the features.
        strides: strides of the levels.
        sizes: sizes of the anchors of each level, equally many per level.
        ratios: height over width of the anchors.
        num_candidates: boxes with the highest scores per level, from which non-maximum suppression chooses.
        num_proposals: boxes that are kept per image.
        anchors_per_image: sampled anchors per image in the loss.
    """

    def __init__(
        self,
        in_channels: int,
        strides: Sequence[int],
        *,
        sizes: Sequence[Sequence[float]],
        ratios: Sequence[float],
        num_candidates: int,
        num_proposals: int,
        anchors_per_image: int,
    ) -> None:
        super().__init__()
        self.strides, self.num_candidates, self.num_proposals = tuple(strides), num_candidates, num_proposals
        self.anchors_per_image, self.bases = anchors_per_image, [base_anchors(each, ratios) for each in sizes]
        count = len(self.bases[0])
        self.conv = nn.Conv2d(in_channels, in_channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(in_channels) for _ in strides)
        self.objectness = nn.Conv2d(in_channels, count, 1)
        self.deltas = nn.Conv2d(in_channels, 4 * count, 1)
        for layer in (self.objectness, self.deltas):
            init_predictor(layer, std=0.01)

    def forward(self, features: list[Tensor]) -> Prediction:
        """Return the scores (logits) and boxes of all anchors."""
        scores, deltas, anchors = [], [], []
        for each, norm, base, stride in zip(features, self.norms, self.bases, self.strides, strict=True):
            hidden = norm(self.conv(each)).relu()
            scores.append(self.objectness(hidden).permute(0, 2, 3, 1).flatten(1).float())
            deltas.append(self.deltas(hidden).permute(0, 2, 3, 1).reshape(len(each), -1, 4).float())
            anchors.append(grid_anchors(base.to(each.device), each.shape[2], each.shape[3], stride))
        return Prediction(scores, deltas, anchors)

    @torch.no_grad()
    def propose(self, prediction: Prediction, image_sizes: Tensor) -> list[Tensor]:
        """Return the proposals of each image, by decreasing score; the whole image if there are none.

        Args:
            prediction: the output of the network.
            image_sizes: height and width of each image, (n, 2), without padding.
        """
        scores, boxes, levels = [], [], []
        for index, (logits, deltas, anchors) in enumerate(zip(*prediction, strict=True)):
            best, chosen = logits.topk(min(self.num_candidates, logits.shape[1]), dim=1)
            selected = deltas.gather(1, chosen[..., None].expand(-1, -1, 4))
            decoded = decode(selected.flatten(0, 1), anchors[chosen.flatten()], RPN_WEIGHTS)
            boxes.append(decoded.view_as(selected))
            scores.append(best)
            levels.append(torch.full((best.shape[1],), index, device=best.device))
        score, box, level = torch.cat(scores, 1), torch.cat(boxes, 1), torch.cat(levels)
        box = clip_boxes(box, image_sizes[:, :1], image_sizes[:, 1:])
        return [self._choose(*each, level) for each in zip(box, score, image_sizes, strict=True)]

    def _choose(self, boxes: Tensor, scores: Tensor, image_size: Tensor, levels: Tensor) -> Tensor:
        """Return the proposals of one image."""
        usable = is_large(boxes, MIN_SIZE).nonzero()[:, 0]
        kept = usable[ops.nms(boxes[usable], scores[usable], levels[usable], 0.7)[: self.num_proposals]]
        if len(kept):
            return boxes[kept]
        return torch.cat([torch.zeros_like(image_size), image_size.flip(0)]).to(boxes.dtype)[None]

    def losses(self, prediction: Prediction, objects: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the losses of objectness and of boxes over randomly sampled anchors.

        Args:
            prediction: the output of the network.
            objects: the boxes of the objects of each image.
        """
        scores, deltas, anchors = torch.cat(prediction.scores, 1), torch.cat(prediction.deltas, 1), torch.cat(prediction.anchors)
        logits, targets, predicted, expected = [], [], [], []
        for index, boxes in enumerate(objects):
            matched = match(box_iou(anchors, boxes), high=0.7, low=0.3, allow_low_quality_matches=True)
            positive, negative = sample(matched, self.anchors_per_image, positive_fraction=0.5)
            logits.append(scores[index, torch.cat([positive, negative])])
            targets.append(torch.cat([torch.ones_like(positive), torch.zeros_like(negative)]))
            predicted.append(deltas[index, positive])
            expected.append(encode(boxes[matched[positive]], anchors[positive], RPN_WEIGHTS))
        target = torch.cat(targets).float()
        return {
            "loss_objectness": binary_cross_entropy_with_logits(torch.cat(logits), target),
            "loss_rpn_box_reg": box_loss(torch.cat(predicted), torch.cat(expected), len(target)),
        }
