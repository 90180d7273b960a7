"""Weights of ResNets that were trained on CIFAR-10, by Yerlan Idelbayev (github.com/akamaster/pytorch_resnet_cifar10)."""

from __future__ import annotations

from pathlib import Path

from anynorm.lab.data.download import RemoteFile, fetch_file

DEPTHS = (20, 32, 44, 56)
_URL = "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models"
_FILES = {
    20: ("resnet20-12fca82f.th", "1f38c81cdebd6bcce9b03d082161a36c"),
    32: ("resnet32-d509ac18.th", "1b290d0b1aad139b0f2be36cf1fa4846"),
    44: ("resnet44-014dd654.th", "953c35969bce8e16eba14f6de91ef262"),
    56: ("resnet56-4bfd9763.th", "48a2383e717f38f02934658ab8d4d9a2"),
}
"""File and MD5 sum by depth."""


def fetch_cifar_weights(depth: int) -> Path:
    """Return the file of the weights of `anynorm.lab.models.cifar_resnet.CifarResNet(depth)`; download it if it is missing.

    Args:
        depth: one of `DEPTHS`.

    Raises:
        DataError: if the file cannot be downloaded.
    """
    name, md5 = _FILES[depth]
    remote = RemoteFile(f"{_URL}/{name}", md5, f"cifar10_resnet_pretrained/{name}")
    return fetch_file(remote.path, remote)
