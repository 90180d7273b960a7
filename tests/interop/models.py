"""The models of other packages on which surgery is tried: all without weights, for 10 classes.

timm                           one or more models of each family
torchvision                    all models for classification, segmentation and video with fewer than 60 million parameters
segmentation_models_pytorch    one of each decoder
transformers                   small models of a few architectures of text, and one of images

A model of fixed input size is made for a small one where its constructor takes `img_size`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

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
halonet26t
mobilevit_xxs mobilevitv2_050 edgenext_xx_small efficientformer_l1 efficientvit_b0 efficientvit_m0
fasternet_t0 fastvit_t8 nextvit_small shvit_s1 starnet_s050 swiftformer_xs tiny_vit_5m_224
convmixer_768_32 convnext_atto convnextv2_atto poolformer_s12 pvt_v2_b0
nf_resnet26 eca_nfnet_l0
cpubone_nano crossvit_tiny_240 csatv2 davit_tiny efficientvim_m1 focalnet_tiny_srf sam2_hiera_tiny iformer_t lowformer_b0
lcnetv2_small
mambaout_femto rdnet_tiny convnext_femto convnext_tiny convnext_zepto_rms convnextv2_femto caformer_s18 convformer_s18
poolformerv2_s12 edgenext_small pvt_v2_b1 mobilevit_s swiftformer_s tiny_vit_11m_224 inception_next_tiny resnetv2_50d_frn
legacy_seresnet18
"""
TIMM_FIXED_SIZE = """
coatnet_pico_rw_224 coatnet_bn_0_rw_224 coatnext_nano_rw_224 maxvit_pico_rw_256 maxvit_rmlp_pico_rw_256 maxvit_tiny_tf_224
maxxvit_rmlp_nano_rw_256 levit_128s nest_tiny visformer_tiny botnet26t_256 lambda_resnet26t xcit_nano_12_p16_224
xcit_tiny_12_p16_224 vit_tiny_patch16_224 vit_small_patch16_224 vit_wee_patch16_reg1_gap_256 vit_relpos_small_patch16_224
vit_srelpos_small_patch16_224 vit_small_patch16_dinov3 vit_xsmall_patch16_clip_224 vit_tiny_r_s16_p8_224 flexivit_small
eva02_tiny_patch14_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 deit3_small_patch16_224 cait_xxs24_224
coat_lite_tiny convit_tiny pit_ti_224 tnt_s_patch16_224 swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window8_256
swinv2_cr_tiny_ns_224 twins_svt_small twins_pcpvt_small mvitv2_tiny hiera_tiny_224 gcvit_xxtiny vitamin_small_224 volo_d1_224
efficientformerv2_s0 mixer_s16_224 mixer_s32_224 gmixer_12_224 gmlp_ti16_224 resmlp_12_224 sequencer2d_s
"""
"""Models that are made for 64 pixels."""
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
TRANSFORMERS = [
    "BertForMaskedLM",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "T5EncoderModel",
]
TRANSFORMERS += ["ViTForImageClassification"]
NUM_TOKENS = 100
TRANSFORMERS_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": NUM_TOKENS,
    "image_size": 64,
    "num_labels": NUM_CLASSES,
    "use_cache": False,
}
"""Sizes of all of these models; one that a model does not have is left out."""
SAMPLE = """
resnet18 efficientnet_b0 regnety_002 mobilenetv3_small_050 repvgg_a0 coatnet_pico_rw_224 levit_128s convnext_atto
vit_tiny_patch16_224 mixer_s32_224
mobilenet_v2 shufflenet_v2_x0_5 lraspp_mobilenet_v3_large r3d_18
Unet-resnet18 FPN-efficientnet-b0
GPT2LMHeadModel LlamaForCausalLM
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
        tokens: number of different tokens if the input is a sequence of them, 0 if it is an image or a clip.
    """

    package: str
    name: str
    make: Callable[[], nn.Module]
    shapes: list[tuple[int, ...]]
    tokens: int = 0

    def example(self, shape: tuple[int, ...], seed: int) -> Tensor:
        """Return two random inputs of a shape."""
        generator = torch.Generator().manual_seed(seed)
        if self.tokens:
            return torch.randint(self.tokens, (2, *shape), generator=generator)
        return torch.rand(2, *shape, generator=generator)

    @property
    def is_in_sample(self) -> bool:
        """Whether CI runs the model."""
        return self.name in SAMPLE.split() and not (self.package == "torchvision" and self.name in TIMM.split())


def all_models() -> list[Model]:
    """Return all models."""
    return [*timm_models(), *torchvision_models(), *smp_models(), *transformers_models()]


def timm_models() -> list[Model]:
    """Return the models of timm."""
    fixed = TIMM_FIXED_SIZE.split()
    models = []
    for name in [*TIMM.split(), *fixed]:
        options = {"num_classes": NUM_CLASSES} | ({"img_size": 64} if name in fixed else {})
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


def transformers_models() -> list[Model]:
    """Return the models of transformers."""
    models = []
    for name in TRANSFORMERS:
        model: Any = getattr(transformers, name)
        of_images = model.main_input_name == "pixel_values"
        shapes: list[tuple[int, ...]] = [(3, 64, 64)] if of_images else [(16,)]
        models.append(Model("transformers", name, partial(_small, model), shapes, 0 if of_images else NUM_TOKENS))
    return models


def _small(model: Any) -> nn.Module:
    """Return a model of transformers with small sizes."""
    known = {name: size for name, size in TRANSFORMERS_SIZES.items() if hasattr(model.config_class(), name)}
    return cast(nn.Module, model(model.config_class(**known)))
