"""Parts of a detector without norms, and frozen norms that leave batch-free ones trainable."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.tasks.detection.task import Detection
from anynorm.surgery.find import find_norms
from tests.lab.tasks.detection.test_task import QUICK, with_options


def norm_parts(model: nn.Module) -> set[str]:
    """Return the first names of the paths of all norms."""
    return {site.path.split(".")[0] for site in find_norms(model)}


def test_a_detector_without_norms_in_fpn_and_heads_has_biases_there_and_norms_in_the_backbone():
    model: Any = Detection(with_options(norm_free=("fpn", "heads"), masks=True)).model
    assert norm_parts(model) == {"backbone"}
    convs = [each for each in (*model.fpn.modules(), *model.heads.modules()) if isinstance(each, nn.Conv2d)]
    assert all(conv.bias is not None and not conv.bias.any() for conv in convs)
    losses = model([torch.rand(3, 32, 32)], [{"boxes": torch.tensor([[4.0, 4, 20, 20]]), "labels": torch.tensor([0]),
                                             "masks": torch.ones(1, 32, 32, dtype=torch.bool)}])  # fmt: skip
    sum(losses.values()).backward()
    assert all(conv.bias.grad is not None for conv in convs)


def test_one_head_can_be_without_norms():
    model: Any = Detection(with_options(norm_free=("heads.rpn",))).model
    assert not find_norms(model.heads.rpn)
    assert find_norms(model.heads.box)


def test_without_norms_the_scale_of_features_is_kept_by_the_pyramid():
    torch.manual_seed(0)
    model: Any = Detection(with_options(norm_free=("fpn",), fpn_channels=64)).model
    features = torch.randn(64, model.fpn.output[0][0].in_channels, 8, 8)
    assert 0.5 < float(model.fpn.output[0](features).detach().std()) < 2


def test_parts_without_norms_must_exist_and_cannot_be_a_stage_of_the_backbone():
    with pytest.raises(SpecError, match=r"norm_free must be one of fpn heads heads.rpn heads.box heads.mask; got"):
        Detection(with_options(norm_free=("neck",)))
    with pytest.raises(SpecError, match=r"norm_free must be parts of the detector; got 'heads.mask'. Usable: fpn heads"):
        Detection(with_options(norm_free=("heads.mask",)))
    with pytest.raises(SpecError, match="norm_free cannot be 'heads' in a detector of type C4"):
        Detection(with_options(norm_free=("heads",), fpn=False))


def test_frozen_xbn_blocks_can_keep_their_batch_free_norms_trainable():
    config = with_options(frozen_submodule="backbone", freeze_batch_free=False)
    model: Any = Detection(replace(config, norm="xbn=gn:2;fpn=gn:2;heads=gn:2")).model
    trained = {site.label for site in find_norms(model.backbone) if site.module.weight.requires_grad}
    frozen = {site.label for site in find_norms(model.backbone) if not site.module.weight.requires_grad}
    assert (trained, frozen) == ({"gn:2"}, {"bn"})
    with pytest.raises(SpecError, match="a submodule with norms that have running statistics; got 'backbone'"):
        Detection(replace(config, norm="gn:2;fpn=bn"))


def test_a_frozen_c4_backbone_includes_its_last_stage_in_the_box_head():
    model: Any = Detection(with_options(frozen_submodule="backbone", fpn=False)).model
    assert not any(site.module.weight.requires_grad for site in find_norms(model.heads.box.body))
    assert all(site.module.weight.requires_grad for site in find_norms(model.heads.rpn))
    assert QUICK.norm == "bn"
