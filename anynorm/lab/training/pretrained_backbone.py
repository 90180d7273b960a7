"""A pretrained backbone in a larger network: the options that detection and segmentation share, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.io.checkpoints import read_state_dict
from anynorm.lab.data.download import find_path
from anynorm.lab.models.backbone import load_backbone
from anynorm.lab.training.config import Config
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.options import Options, option
from anynorm.surgery.batches import calibration
from anynorm.surgery.find import find_norms
from anynorm.surgery.freeze import freeze


@dataclass(frozen=True)
class PretrainedOptions(Options):
    """The options of a network with a backbone that may be pretrained."""

    weights: str = option(
        "",
        'path of the state dict of a pretrained classifier, such as `model.pt` of a run, for the backbone; "" for none. The '
        "classifier must have the norms of the run; with `fit_images` it must have BN.",
    )
    fit_images: int = option(
        0,
        "number of training images on which γ and β of the backbone's new norms are fitted to its pretrained BN; 0 for weights "
        "that have the norms of the run.",
        minimum=0,
    )
    frozen_submodule: str = option(
        "",
        'path of the submodule whose norms are frozen (running statistics, γ and β), such as backbone; "" for none.',
        old_name="frozen",
    )
    freeze_batch_free: bool = option(
        True,
        "whether norms of `frozen_submodule` without running statistics, such as GN in XBN blocks, are frozen too; if not, their "
        "γ and β are trained.",
    )
    backbone_image_size: int = option(
        224, "side of the images of the classifier; up to 64, the stem of the backbone keeps the resolution.", minimum=1
    )

    def check(self) -> None:
        """Check that norms are fitted to pretrained weights only."""
        if self.fit_images and not self.weights:
            raise SpecError(
                f"fit_images needs the option weights, a pretrained network to which norms are fitted; got {self.fit_images}."
            )


Load = Callable[[nn.Module, Mapping[str, Tensor], str], None]
"""Loads the state dict of a classifier into a network; the name of its file is for messages."""


def load_into_backbone(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load the weights of a classifier into the submodule `backbone` of a network; see `load_backbone`."""
    load_backbone(network.get_submodule("backbone"), weights, source)


def set_up_network(
    network: nn.Module,
    config: Config,
    options: PretrainedOptions,
    calibration_images: Callable[[int], Tensor],
    load: Load = load_into_backbone,
) -> nn.Module:
    """Replace the norms of a network, load pretrained weights into its backbone, and freeze the norms of a submodule.

    Args:
        network: a network with norms and a submodule `backbone`.
        config: the run, with its norms.
        options: the options of the task.
        calibration_images: function that returns a given number of input images, on which the norms of the backbone are fitted.
        load: function that loads the weights of a classifier into the network.

    Returns:
        The network, in train mode.

    Raises:
        DataError: if the weights do not fit the backbone.
        SpecError: if a submodule does not exist or has no norms.
    """
    weights = read_state_dict(find_path(options.weights)) if options.weights else None
    if weights is not None and options.fit_images:
        load(network, weights, options.weights)
        fit_backbone(network, config, calibration_images(options.fit_images))
    network = Layout.parse(config.norm, config.batch_size).apply(network)
    if weights is not None and not options.fit_images:
        load(network, weights, options.weights)
    if options.frozen_submodule:
        freeze_submodule(network, options.frozen_submodule, batch_free=options.freeze_batch_free)
    return network.train()


def fit_backbone(network: Any, config: Config, images: Tensor) -> None:
    """Replace the norms of a pretrained backbone by those of a run, with γ and β fitted on images."""
    layout = Layout.parse(config.norm, config.batch_size).of_submodule("backbone")
    network.backbone = layout.apply(network.backbone.eval(), calibration(images, None))


def freeze_submodule(network: nn.Module, path: str, *, batch_free: bool = True) -> None:
    """Freeze the norms of a submodule: statistics and affine.

    Args:
        network: the network.
        path: the path of the submodule.
        batch_free: whether norms without running statistics are frozen too.

    Raises:
        SpecError: if the submodule does not exist, or has no norm to freeze.
    """
    usable = [name for name, child in network.named_children() if _find_frozen(child, batch_free=batch_free)]
    norms = _find_frozen(network.get_submodule(path), batch_free=batch_free) if path in dict(network.named_modules()) else []
    if not norms:
        kind = "norms" if batch_free else "norms that have running statistics"
        raise SpecError(f"frozen_submodule must be a submodule with {kind}; got {path!r}. Usable: {' '.join(usable)}.")
    freeze(network.get_submodule(path), norms)


def _find_frozen(part: nn.Module, *, batch_free: bool) -> list[nn.Module]:
    """Return the norms of a part that are to be frozen."""
    return [site.module for site in find_norms(part) if not site.unsupported and (batch_free or site.info.running_stats)]
