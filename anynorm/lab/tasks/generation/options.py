"""The options of image generation."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.tasks.generation.feature_networks import distance_name
from anynorm.lab.training.options import Options, option


@dataclass(frozen=True)
class GenerationOptions(Options):
    """The options of `anynorm.lab.tasks.generation.task.Generation`.

    Raises:
        DataError: if there is no such feature network.
    """

    n_dis: int = option(5, "number of updates of the discriminator per step.", minimum=1)
    generator_batch_size: int = option(0, "number of images per update of the generator; 0 for `config.batch_size`.", minimum=0)
    beta1: float = option(0.0, "β₁ of Adam, for both networks.", minimum=0, below=1)
    beta2: float = option(0.9, "β₂ of Adam, for both networks.", minimum=0, below=1)
    shared_embedding: bool = option(
        False, "whether the norms of a BigGAN predict γ and β from an embedding of the class, as `bn.style` does."
    )
    attention: bool = option(
        False, "whether generator and discriminator of a BigGAN have self-attention at half of the resolution."
    )
    features: str = option(
        "classifier", "network whose features of generated and real images are compared; a name of `feature_networks`."
    )
    num_generated: int = option(1000, "number of generated images in an evaluation.", minimum=2)
    num_reference: int = option(0, "number of training images that generated images are compared with; 0 for all.", minimum=0)
    score_splits: int = option(10, "number of parts of the generated images over which the class score is averaged.", minimum=1)
    intra_class: bool = option(True, "whether evaluations also have the distance within each class.")
    recalibration_batches: int = option(
        16,
        "number of batches on which running statistics are estimated before an evaluation, because those of an averaged "
        "generator belong to other weights; 0 to use them as they are.",
        minimum=0,
    )
    balance_interval: int = option(0, "number of steps between measurements of the gradient balance; 0 for none.", minimum=0)
    balance_draws: int = option(4, "number of draws of latent vectors in a measurement of the gradient balance.", minimum=1)
    balance_batch_size: int = option(
        0,
        "number of latent vectors of a draw, whose gradients are averaged before they are compared: 1 for sabn eq. 4, 0 for "
        "`config.batch_size`.",
        minimum=0,
    )
    balance_classes: int = option(
        10, "number of classes whose gradients are compared, at equal distances in the order of labels; 0 for all.", minimum=0
    )

    def check(self) -> None:
        """Check the name of the feature network."""
        distance_name(self.features)
