"""Adversarial training of image classifiers: on adversarial images only, and on clean and adversarial images."""
