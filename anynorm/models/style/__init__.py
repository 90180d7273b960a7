"""Networks for style transfer: VGG encoders, their mirrored decoder, and Johnson's network for a single style."""
