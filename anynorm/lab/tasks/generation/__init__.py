"""Class-conditional image generation by GANs."""
