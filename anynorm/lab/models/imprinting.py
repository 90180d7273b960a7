"""Addition of classes to a trained classifier from a few images (Qi et al. 2018, "imprinted weights").

For a class with K images, whose features f_1 … f_K are the inputs of the last layer, the weights of the class are

    w = v/‖v‖,   v = mean of f_k/‖f_k‖

A cosine classifier uses w directly. In an `nn.Linear`, w is multiplied by the mean norm of the rows of the old classes, and the
bias is the mean bias of the old classes, so that no class is favored by its scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import SurgeryError
from anynorm.lab.models.classifier import TOLERANCE, Classifier, batch_dependence, extract_features, find_classifier
from anynorm.lab.models.cosine import CosineLinear
from anynorm.surgery.find import check_model
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import UndoLog, all_or_nothing


def imprint(model: nn.Module, images: Tensor, labels: Tensor | Sequence[Any], *, classifier: str | None = None) -> SurgeryReport:
    """Add classes to a trained classifier, in place. Nothing is trained.

    Args:
        model: a model whose last layer is an `nn.Linear` or a `CosineLinear`; its mode and running statistics are unchanged.
        images: a batch of inputs of the model, a few per new class.
        labels: one label per image, numbers or names. Each distinct label is a new class, even if a number is the index of an old
            class. The new classes are appended after the old classes, in the order of the sorted labels.
        classifier: path of the last layer, such as "fc"; None for the last `nn.Linear` or `CosineLinear` of the model.

    Returns:
        A report with one row per new class: its label, its output index, its number of images, and the output index of the
        nearest old class with the cosine to it. `undo()` removes the classes. An optimizer created before this call still has
        the old parameters.

    Raises:
        SurgeryError: if the model has no such layer, the layer cannot be extended, the numbers of images and labels differ, or
            the features of an image depend on its batch or are 0. The model is unchanged.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> report = imprint(model, torch.eye(4).reshape(4, 1, 2, 2), ["cat", "cat", "dog", "dog"])
    >>> model(torch.zeros(1, 1, 2, 2)).shape
    torch.Size([1, 4])
    >>> report.undo()[1].out_features
    2
    """
    check_model(model)
    layer = find_classifier(model, classifier)
    names, numbers = _number_labels(images, labels)
    weights = _imprinted_weights(model, layer, images, numbers, names)
    rows = _describe(layer.module, weights, names, numbers)
    with all_or_nothing() as undo_log:
        _append_rows(layer.module, weights, undo_log)
    total = layer.module.out_features
    count = f"{len(names)} class{'es' * (len(names) > 1)}"
    finding = f"{count} added to '{layer.path}': outputs {total - len(names)} to {total - 1} of {total}."
    return SurgeryReport(rows, finding, model, _undo(layer, undo_log))


def reimprint(
    model: nn.Module, images: Tensor, labels: Tensor | Sequence[int], *, classifier: str | None = None
) -> SurgeryReport:
    """Replace the weights of existing classes of a classifier by weights imprinted from images, in place.

    The features of all classes have a common component, which imprinted weights contain and trained weights need not contain. So
    imprinted classes are predicted too often beside trained ones. With images of the old classes, all weights can be imprinted.

    Args:
        model: see `imprint`.
        images: a few images per class.
        labels: the output index of the class of each image. The weights of other outputs are unchanged.
        classifier: see `imprint`.

    Returns:
        A report with one row per class; `cosine` is the cosine of its old and new weights. `undo()` restores the old weights.

    Raises:
        SurgeryError: in the cases listed in `imprint`, and if a label is not an output index. The model is unchanged.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> reimprint(model, torch.eye(4)[:1].reshape(1, 1, 2, 2), [1]).finding
    "the weights of 1 of 2 outputs of '1' were replaced."
    """
    check_model(model)
    layer = find_classifier(model, classifier)
    outputs, numbers = _number_labels(images, labels)
    total = layer.module.out_features
    if not all(isinstance(output, int) and 0 <= output < total for output in outputs):
        raise SurgeryError(f"labels must be outputs of '{layer.path}', 0 to {total - 1}; got {outputs}. imprint() adds classes.")
    weights = _imprinted_weights(model, layer, images, numbers, outputs)
    cosines = nn.functional.cosine_similarity(weights.to(layer.module.weight), layer.module.weight.detach()[outputs])
    counts = torch.bincount(numbers).tolist()
    rows = [
        {"output": output, "images": count, "cosine": round(cosine, 4)}
        for output, count, cosine in zip(outputs, counts, cosines.tolist(), strict=True)
    ]
    with all_or_nothing() as undo_log:
        _replace_rows(layer.module, outputs, weights, undo_log)
    finding = f"the weights of {len(outputs)} of {total} outputs of '{layer.path}' were replaced."
    return SurgeryReport(rows, finding, model, _undo(layer, undo_log))


def class_weights(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the imprinted weights of classes: the normalized means of normalized features, (…, num_classes, c).

    Args:
        features: feature vectors, (…, n, c).
        labels: the class of each feature vector, (n,), from 0 to `num_classes` − 1.
        num_classes: number of classes; the weights of a class without features are 0.
    """
    one_hot = nn.functional.one_hot(labels.to(features.device), num_classes).to(features.dtype)
    return nn.functional.normalize(one_hot.T @ nn.functional.normalize(features, dim=-1), dim=-1)


def _number_labels(images: Tensor, labels: Tensor | Sequence[Any]) -> tuple[list[Any], Tensor]:
    """Return the sorted distinct labels, and the index of the label of each image in this list."""
    values = [_plain_label(label) for label in labels]
    if len(values) != len(images) or not values:
        raise SurgeryError(
            f"imprint needs one label per image, and at least one image; got {len(images)} images, {len(values)} labels."
        )
    if not any(all(isinstance(value, kind) for value in values) for kind in (Real, str)):
        got = " and ".join(sorted({type(value).__name__ for value in values}))
        raise SurgeryError(f"labels must be numbers, or names, one per image; got labels of type {got}.")
    names = sorted(set(values))
    number = {name: k for k, name in enumerate(names)}
    return names, torch.tensor([number[value] for value in values])


def _plain_label(label: Any) -> Any:
    """Convert a scalar tensor or a NumPy integer to a Python number."""
    if isinstance(label, Tensor) and label.dim() == 0:
        return label.item()
    return int(label) if isinstance(label, Integral) else label


def _describe(layer: nn.Linear | CosineLinear, weights: Tensor, names: list[Any], numbers: Tensor) -> list[dict[str, Any]]:
    existing = nn.functional.normalize(layer.weight.detach(), dim=1)
    cosines, nearest = (nn.functional.normalize(weights, dim=1) @ existing.T).max(1)
    counts = torch.bincount(numbers, minlength=len(names))
    return [
        {
            "label": name,
            "output": layer.out_features + k,
            "images": int(counts[k]),
            "nearest output": int(nearest[k]),
            "cosine": round(float(cosines[k]), 4),
        }
        for k, name in enumerate(names)
    ]


def _imprinted_weights(model: nn.Module, layer: Classifier, images: Tensor, numbers: Tensor, names: list[Any]) -> Tensor:
    """Return the imprinted weights of classes, scaled for the classifier, after checking the classifier and the features."""
    if hasattr(layer.module, "parametrizations"):
        raise SurgeryError(
            f"the weights of '{layer.path}' are parametrized (torch.nn.utils.parametrize) and cannot be replaced. "
            "Remove the parametrization first (remove_parametrizations)."
        )
    weights = class_weights(extract_features(model, images, classifier=layer.path), numbers, len(names))
    if not bool(torch.isfinite(weights).all()):
        raise SurgeryError("the features of the images must be finite; got NaN or infinite values. The model is unchanged.")
    if not bool(weights.any(1).all()):
        zero = [name for name, row in zip(names, weights, strict=True) if not bool(row.any())]
        raise SurgeryError(f"the features of a class must not all be 0; got 0 for {zero}. The model is unchanged.")
    if (difference := batch_dependence(model, images[:1], classifier=layer.path)) > TOLERANCE:
        raise SurgeryError(
            "the features of an image must not depend on the other images of its batch in eval mode; they differ by "
            f"{100 * difference:.2g} %. Use norms with running statistics. The model is unchanged."
        )
    if isinstance(layer.module, nn.Linear):
        weights = weights * layer.module.weight.detach().norm(dim=1).mean()
    return weights.to(layer.module.weight)


def _append_rows(layer: nn.Linear | CosineLinear, weights: Tensor, undo_log: UndoLog) -> None:
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        bias = layer.bias.detach()
        _set_parameter(layer, "bias", torch.cat([bias, bias.mean().expand(len(weights))]), undo_log)
    _set_parameter(layer, "weight", torch.cat([layer.weight.detach(), weights]), undo_log)
    undo_log.set_attribute(layer, "out_features", layer.out_features + len(weights))


def _replace_rows(layer: nn.Linear | CosineLinear, outputs: list[int], weights: Tensor, undo_log: UndoLog) -> None:
    index = torch.tensor(outputs, device=weights.device)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        bias = layer.bias.detach()
        _set_parameter(layer, "bias", bias.index_fill(0, index, float(bias.mean())), undo_log)
    _set_parameter(layer, "weight", layer.weight.detach().index_copy(0, index, weights), undo_log)


def _set_parameter(layer: nn.Module, name: str, value: Tensor, undo_log: UndoLog) -> None:
    requires_grad = layer.get_parameter(name).requires_grad
    undo_log.set_attribute(layer, name, nn.Parameter(value, requires_grad=requires_grad))


def _undo(layer: Classifier, undo_log: UndoLog) -> Any:
    """Return a function that reverts an imprint; it raises SurgeryError if the weights have been replaced again."""
    imprinted = layer.module.weight

    def undo() -> None:
        if undo_log.undo_steps and layer.module.weight is not imprinted:
            raise SurgeryError(f"the weights of '{layer.path}' have been replaced again since: undo the later operation first.")
        undo_log.undo()

    return undo
