"""The operators of torchvision, before a test module imports it."""

from tests.interop.operators import prepare_torchvision

prepare_torchvision()
