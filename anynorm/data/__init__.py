"""Datasets by name, in memory, and batch augmentation.

digits mnist fashion-mnist cifar10 cifar100      see `readers`
cifar10@16                                       any of these, reduced to 16 × 16 pixels by averaging
folder:PATH                                      PATH/train/CLASS/… and PATH/test/CLASS/…, or PATH/CLASS/… alone; see `folder`
package.module:factory                           a function that returns (images, labels), (images, labels): train, test
"""

from anynorm.data.datasets import DATASETS, ImageDataset, load_cached, load_dataset

__all__ = ["DATASETS", "ImageDataset", "load_cached", "load_dataset"]
