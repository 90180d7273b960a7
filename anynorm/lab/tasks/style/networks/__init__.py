"""Networks for style transfer: VGG encoders, the decoder that mirrors them, and Johnson's network for a single style."""
