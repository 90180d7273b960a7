"""The options of style transfer."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class StyleTransferOptions(Options):
    """The options of `anynorm.lab.tasks.style.task.StyleTransfer`."""

    styles: str = option("", "style images, folder:PATH or npz:PATH; must be set. See `anynorm.lab.data.unlabeled`.")
    encoder: str = option("vgg19", "name or path of the weights of the encoder; see `anynorm.lab.tasks.style.encoders`.")
    content_layer: str = option("relu4_1", "last layer of the encoder, where the style is applied.")
    style_layers: tuple[str, ...] = option(
        ("relu1_1", "relu2_1", "relu3_1", "relu4_1"), "layers of the encoder in the style loss."
    )
    style_weight: float = option(10.0, "weight of the style loss; that of the content loss is 1.")
    detach_target: bool = option(True, "whether the target of the content loss is a constant, without a gradient.")
    resize: int = option(512, "length of the shorter side of images before they are cropped, in pixels.")
    styles_per_content: int = option(1, "number of styles with which evaluations render each test image.", minimum=1)


@dataclass(frozen=True)
class SingleStyleOptions(Options):
    """The options of `anynorm.lab.tasks.style.single_style.SingleStyleTransfer`."""

    style_image: str = option("", "path of the style image, whose central square is used; must be set.")
    style_size: int = option(
        0, "side to which the central square of the style image is resized, in pixels; 0 for `image_size`.", minimum=0
    )
    encoder: str = option("vgg16", "name or path of the weights of the loss network; see `anynorm.lab.tasks.style.encoders`.")
    content_layer: str = option("relu3_3", "layer of the loss network in the content loss.")
    style_layers: tuple[str, ...] = option(
        ("relu1_2", "relu2_2", "relu3_3", "relu4_3"), "layers of the loss network in the style loss."
    )
    content_weight: float = option(1.0, "weight of the content loss.")
    style_weight: float = option(10.0, "weight of the style loss.")
    tv_weight: float = option(0.0, "weight of the total variation of the stylized images; 0 for none.")
    resize: int = option(256, "length of the shorter side of content images before they are cropped, in pixels.")
    last_layer_scale: float = option(
        1.0, "factor of the initial weights of the last convolution; below 1, tanh does not saturate at the start.", above=0
    )
