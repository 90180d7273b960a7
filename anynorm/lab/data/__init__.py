"""Datasets by name, and augmentation.

In memory, for data of up to about 4 GB (the fastest):

    digits mnist fashion-mnist cifar10 cifar100      see `readers`
    usps mnist-m                                     other domains of MNIST's digits; see `domain_readers`
    cifar10@16                                       any of these, reduced to 16 × 16 pixels by averaging
    pacs/photo office31/amazon                       one domain of PACS or Office-31; see `domain_readers`
    folder:PATH                                      PATH/train/CLASS/… and PATH/test/CLASS/…, or PATH/CLASS/… alone; see `folder`
    package.module:factory                           a function that returns (images, labels), (images, labels): train, test

Decoded by worker processes while the model trains, for data of any size, or for random-resized crops of the original images:

    stream:PATH                                      a folder as for folder:PATH; see `stream`, `loader`
    hf:NAME                                          a dataset of Hugging Face `datasets`, from the hub or the disk; see `hf`

Images without labels: see `unlabeled`. The data of other problems are in their rooms: `anynorm.lab.tasks.detection.data`,
`anynorm.lab.tasks.segmentation.data`, `anynorm.lab.tasks.video.data`, `anynorm.lab.tasks.few_shot.data` and
`anynorm.lab.tasks.adaptation.data`. How a name is resolved: see `names`.
"""

from anynorm.lab.data.datasets import DATASETS, ImageDataset, load_cached, load_dataset
from anynorm.lab.data.loader import StepLoader
from anynorm.lab.data.stream import StreamedDataset

__all__ = ["DATASETS", "ImageDataset", "StepLoader", "StreamedDataset", "load_cached", "load_dataset"]
