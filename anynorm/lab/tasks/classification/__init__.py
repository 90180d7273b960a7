"""Image classification, and its errors on adversarial images."""
