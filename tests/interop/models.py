"""The models of other packages on which surgery is tried: all without weights, for 10 classes.

timm                           one or more models of each convolutional or hybrid family, and a few without any BatchNorm
torchvision                    all models for classification, segmentation and video with fewer than 60 million parameters
segmentation_models_pytorch    one of each decoder

An attention model of fixed input size is made for a small one where its constructor takes `img_size`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import segmentation_models_pytorch as smp
import timm
import torchvision
from torch import nn

MAX_PARAMETERS = 60e6
NUM_CLASSES = 10
TIMM = """
resnet18 resnet26t resnet50 resnet50d resnetblur18 resnetv2_18 resnet50_gn resnetrs50 wide_resnet50_2 seresnet18
ecaresnet26t resnext50_32x4d seresnext26ts gcresnet33ts skresnet18 resnest14d res2net50_26w_4s tresnet_m
regnetx_002 regnety_002 regnetz_005 regnetv_040 gernet_s repvgg_a0 mobileone_s0 repvit_m0_9 repghostnet_050
efficientnet_b0 efficientnet_b0_gn efficientnet_lite0 efficientnetv2_rw_t mixnet_s mnasnet_050
spnasnet_100 fbnetc_100 fbnetv3_b hardcorenas_a tinynet_e lcnet_050 rexnet_100
mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mobilenetv4_hybrid_medium_075
ghostnet_050 ghostnetv3_050
vgg11_bn densenet121 dla34 dpn48b hrnet_w18_small xception41 xception41p
inception_v3 inception_v4 inception_next_atto
cs3darknet_s cspnext_tiny ese_vovnet19b_slim selecsls42 hgnetv2_b0
coatnet_pico_rw_224 coatnet_bn_0_rw_224 maxvit_pico_rw_256
botnet26t_256 halonet26t lambda_resnet26t levit_128s
mobilevit_xxs mobilevitv2_050 edgenext_xx_small efficientformer_l1 efficientvit_b0 efficientvit_m0
fasternet_t0 fastvit_t8 nextvit_small shvit_s1 starnet_s050 swiftformer_xs tiny_vit_5m_224 visformer_tiny xcit_nano_12_p16_224
convmixer_768_32 convnext_atto convnextv2_atto nest_tiny poolformer_s12 pvt_v2_b0 vit_tiny_patch16_224
nf_resnet26 eca_nfnet_l0
"""
TIMM_IMAGE_SIZE = {
    **dict.fromkeys(["coatnet_pico_rw_224", "coatnet_bn_0_rw_224", "maxvit_pico_rw_256"], 64),
    **dict.fromkeys(["levit_128s", "nest_tiny", "visformer_tiny", "vit_tiny_patch16_224"], 64),
    **dict.fromkeys(["botnet26t_256", "lambda_resnet26t", "xcit_nano_12_p16_224"], 64),
}
TIMM_224_PIXELS = ["efficientvit_m0"]
"""Models that overflow at 64 pixels, where their last feature maps have a single position."""
SMP = {
    "Unet": "resnet18",
    "UnetPlusPlus": "mobilenet_v2",
    "FPN": "efficientnet-b0",
    "Linknet": "timm-regnety_002",
    "MAnet": "vgg11_bn",
    "PSPNet": "densenet121",
    "PAN": "resnet34",
    "DeepLabV3Plus": "mobileone_s0",
    "UPerNet": "resnext50_32x4d",
    "Segformer": "mit_b0",
}
SAMPLE = """
resnet18 efficientnet_b0 regnety_002 mobilenetv3_small_050 repvgg_a0 coatnet_pico_rw_224 levit_128s convnext_atto
mobilenet_v2 shufflenet_v2_x0_5 lraspp_mobilenet_v3_large r3d_18
Unet-resnet18 FPN-efficientnet-b0
"""
IMAGE_SHAPES: list[tuple[int, ...]] = [(3, size, size) for size in (64, 96, 128, 224, 256, 299)]
CLIP_SHAPES: list[tuple[int, ...]] = [(3, frames, size, size) for frames, size in ((4, 64), (8, 64), (16, 112), (16, 224))]


class Model(NamedTuple):
    """A model of another package.

    Attributes:
        package: name of the package.
        name: name of the model in the package.
        make: function that returns the model.
        shapes: shapes of inputs without the batch axis, smallest first; the first that the model takes is used.
    """

    package: str
    name: str
    make: Callable[[], nn.Module]
    shapes: list[tuple[int, ...]]

    @property
    def is_in_sample(self) -> bool:
        """Whether CI runs the model."""
        return self.name in SAMPLE.split() and not (self.package == "torchvision" and self.name in TIMM.split())


def all_models() -> list[Model]:
    """Return all models."""
    return [*timm_models(), *torchvision_models(), *smp_models()]


def timm_models() -> list[Model]:
    """Return the models of timm."""
    models = []
    for name in TIMM.split():
        size = TIMM_IMAGE_SIZE.get(name)
        options = {"num_classes": NUM_CLASSES} | ({"img_size": size} if size else {})
        shapes = IMAGE_SHAPES[IMAGE_SHAPES.index((3, 224, 224)) :] if name in TIMM_224_PIXELS else IMAGE_SHAPES
        models.append(Model("timm", name, partial(timm.create_model, name, **options), shapes))
    return models


def torchvision_models() -> list[Model]:
    """Return the models of torchvision that are small enough."""
    library = torchvision.models
    models = []
    for module, shapes in ((library, IMAGE_SHAPES), (library.segmentation, IMAGE_SHAPES), (library.video, CLIP_SHAPES)):
        for name in library.list_models(module=module):
            if next(iter(library.get_model_weights(name))).meta["num_params"] < MAX_PARAMETERS:
                options = {"num_classes": NUM_CLASSES, "weights": None}
                options |= {"weights_backbone": None} if module is library.segmentation else {}
                options |= {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
                models.append(Model("torchvision", name, partial(library.get_model, name, **options), shapes))
    return models


def smp_models() -> list[Model]:
    """Return the models of segmentation_models_pytorch."""
    return [
        Model("smp", f"{decoder}-{encoder}", partial(getattr(smp, decoder), encoder, encoder_weights=None), IMAGE_SHAPES)
        for decoder, encoder in SMP.items()
    ]
