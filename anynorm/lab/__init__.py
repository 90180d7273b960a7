"""The lab: training of norms against each other, and the experiments of five papers. Needs `pip install 'anynorm[lab]'`.

The names below are public; `Config`, `Metric`, `Task`, `compare` and `train` are names of `anynorm` itself.
"""

from typing import TYPE_CHECKING

from anynorm.lazy import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from anynorm.lab.attacks import FGSM as FGSM
    from anynorm.lab.attacks import PGD as PGD
    from anynorm.lab.attacks import StandardizedModel as StandardizedModel
    from anynorm.lab.data import ImageDataset as ImageDataset
    from anynorm.lab.data import load_dataset as load_dataset
    from anynorm.lab.data.cifar_weights import fetch_cifar_weights as fetch_cifar_weights
    from anynorm.lab.data.shape import DataShape as DataShape
    from anynorm.lab.models import build_model as build_model
    from anynorm.lab.models.backbone import make_backbone as make_backbone
    from anynorm.lab.models.cifar_resnet import CifarResNet as CifarResNet
    from anynorm.lab.models.imprinting import imprint as imprint
    from anynorm.lab.models.imprinting import reimprint as reimprint
    from anynorm.lab.models.search.darts.genotype import GENOTYPES as GENOTYPES
    from anynorm.lab.models.search.darts.genotype import parse_genotype as parse_genotype
    from anynorm.lab.models.search.nasbench201.notation import OP_NAMES as OP_NAMES
    from anynorm.lab.tasks.detection.data.datasets import DetectionDataset as DetectionDataset
    from anynorm.lab.tasks.detection.data.datasets import load_detection as load_detection
    from anynorm.lab.tasks.detection.data.datasets import make_detection_dataset as make_detection_dataset
    from anynorm.lab.tasks.detection.networks.build import make_detector as make_detector
    from anynorm.lab.tasks.detection.options import DetectionOptions as DetectionOptions
    from anynorm.lab.tasks.run import load_run as load_run
    from anynorm.lab.tasks.run import run as run
    from anynorm.lab.tasks.search.bandits import Exp3 as Exp3
    from anynorm.lab.tasks.search.bandits import LeastSquares as LeastSquares
    from anynorm.lab.tasks.search.bandits import RandomSearch as RandomSearch
    from anynorm.lab.tasks.search.nasbench import CellTable as CellTable
    from anynorm.lab.tasks.search.nasbench import convert_nats_bench as convert_nats_bench
    from anynorm.lab.tasks.search.path_evaluation import evaluate_path as evaluate_path
    from anynorm.lab.tasks.style.encoders import load_vgg as load_vgg
    from anynorm.lab.tasks.style.networks.decoder import StyleTransferNetwork as StyleTransferNetwork
    from anynorm.lab.tasks.style.networks.decoder import mirror as mirror
    from anynorm.lab.tasks.style.stylize import stylize as stylize
    from anynorm.lab.tasks.video.networks import inflate as inflate
    from anynorm.lab.training.devices import Hardware as Hardware
    from anynorm.lab.training.options import Options as Options
    from anynorm.lab.training.options import option as option
    from anynorm.lab.training.task import make_optimizer as make_optimizer

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
