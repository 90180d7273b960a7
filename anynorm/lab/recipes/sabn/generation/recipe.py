"""sabn Table 1, Figs. 2 to 4: CCBN against SaBN in generators, and the balance of their gradients.

    anynorm reproduce sabn_generation --preset night

Paper: SNGAN, BigGAN and AutoGAN on CIFAR-10, SNGAN on the 143 classes of dogs and cats of ImageNet at 128 × 128 pixels; FID and
IS, the best of each during training (Table 1). For the latter: gradients of classes during training, standard deviation of their
norms and cosine similarity, by stage (Fig. 2); loss of the generator and IS over steps (Fig. 3); samples (Fig. 4).

    smoke  64 digits, SNGAN, 4 steps; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, generators of 32 channels, 600 steps; SNGAN also with 140 classes; a demonstration, which
           decides nothing unless its controls hold
    night  SNGAN of `desk` with 10 and 140 classes, 4000 steps, 10 000 generated images; subject to a pilot until its record
           exists
    paper  the published settings; needs the Inception network (`pip install 'anynorm[generation]'`) and a folder
           imagenet-dogs-cats/ with train/ and test/. IS needs the last layer of Inception, see `feature_networks.LOGITS_FILE`

Controls: a generator depends on its class (class accuracy of its images at least 60 % of that of real ones, by a classifier of
real images; a generator of ten classes that ignores its class has about 20 %); the class score is a measure of quality (that of
real images is at least 1.2 times that of the first samples, and training closes a quarter of this gap). Without the first, CCBN
and SaBN have nothing to do.

Distances and class scores have no values per image: the intervals of their claims contain the spread over seeds alone.

Scaled down in `desk` and `night`: steps, an eighth of the width, 32 images per batch, two updates of the discriminator. Distances
use the features of a ResNet trained on CIFAR-10 ("FD (ResNet-20)", not FID), and are compared as ratios; the value of a run is
the mean of its last three evaluations, not the best one. The learning rate of 4e-4 was chosen with one seed of SNGAN. The 143
classes of ImageNet are replaced by 140 clusters of CIFAR-10 (`cifar_clusters`), made by the features of ResNet-20; `night`
measures distances by ResNet-32. Figs. 2 and 3 are about SNGAN on ImageNet: the claims about other networks and data are ours.

Eq. 4 takes the cosine of the gradients of classes for single latent vectors, and then the mean. In `desk`, gradients were
averaged over a batch before the cosine, and of the 140 classes only the first ten were compared, all clusters of airplanes. So
`desk` makes no claim about the cosine, nor about the gradients of many classes. The paper measures gradients "during training":
claims in train mode are the paper's, those in eval mode ours. Its spreads are "mostly" lower with SaBN: the claim is about the
median of the ratios over stages, which is above 1 if they are lower in most stages.

Reference images are chosen at random from the training images. The record of `desk` is older than this choice: its 10 000 are the
first ones of CIFAR-10, which are in random order too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.sabn.generation.claims import claims, controls
from anynorm.lab.recipes.sabn.generation.plots import draw_balance, draw_curves, draw_samples
from anynorm.lab.recipes.sabn.generation.results import BALANCE, failed_results, summarize
from anynorm.lab.recipes.sabn.generation.settings import MANY, PRESETS, GenerationSettings
from anynorm.lab.recipes.support.pictures import last_artifact
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table
from anynorm.lab.recipes.support.runs import make_config, options_of, run_outcome, train_run
from anynorm.lab.tasks.generation.feature_networks import distance_name, score_name
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


def cells(settings: GenerationSettings) -> list[Cell]:
    """Return one cell per network, norm and seed."""
    return grid(settings.seeds, network=settings.networks, norm=settings.norms)


def measure(settings: GenerationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a GAN and return its distances, scores, loss and gradient balance, and samples of the first seed."""
    norm = settings.norms[cell["norm"]]
    config = make_config(replace(settings.networks[cell["network"]], norm=norm, seed=cell["seed"]))
    record = train_run(config, runs)
    if not record.done:
        return {**failed_results(), "picture": "", **run_outcome(record)}
    picture = last_artifact(runs, config.id, "samples/") if cell["seed"] == 0 else ""
    return {**summarize(record.curve, settings.features, settings.num_last_evals), "picture": picture, **run_outcome(record)}


def tables(record: RecipeRecord[GenerationSettings]) -> list[Table]:
    """Return the distances, scores, losses and class accuracies by network and norm."""
    features = record.settings.features
    columns = {
        "fd": distance_name(features),
        "best_fd": f"best {distance_name(features)}",
        "class_score": score_name(features),
        "real_class_score": f"{score_name(features)}, real images",
        "generator_loss": "L_G",
        "class_accuracy": "class accuracy, %",
        "real_class_accuracy": "class accuracy of real images, %",
    }
    rows = [
        {"network": network, "norm": norm}
        | {
            name: result_over_seeds(record.rows, column, network=network, norm=norm)
            for column, name in columns.items()
            if any(row.get(column) is not None for row in record.rows)
        }
        for network in record.settings.networks
        for norm in record.settings.norms
    ]
    finding = f"Mean of the last {record.settings.num_last_evals} evaluations; best: the best of all. Mean ± sd over seeds."
    return [result_table(rows, finding, ".3g ± .2g")]


def plot(record: RecipeRecord[GenerationSettings], path: Path) -> list[Path]:
    """Plot distance, loss and class score over steps, the gradient balance that claims are about, and samples."""
    networks, features = list(record.settings.networks), record.settings.features
    names = {"fd": distance_name(features), "generator_loss": "L_G", "class_score": score_name(features)}
    single = {network: options_of(config).balance_batch_size == 1 for network, config in record.settings.networks.items()}
    compared = [network for network in networks if single[network] or network != MANY]
    columns = [column for column in BALANCE if all(single.values()) or column != "g_inter"]
    pictures = draw_curves(record, path, networks, names) + draw_balance(record, path, compared, columns)
    return pictures + draw_samples(record, path, networks, list(record.settings.norms))


RECIPE = Recipe("sabn_generation", PRESETS, cells, measure, claims, plot, tables, controls)
