"""Tables and plots of `sabn_adversarial`."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sabn.adversarial.settings import AUX_BN, BRANCH, SA_AUX_BN
from anynorm.lab.recipes.support.adversarial import AdversarialSettings, plot
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import metric_rows, result_table, save_figure, select
from anynorm.lab.tasks.classification.robustness import RobustMetric
from anynorm.table import Table


def tables(record: RecipeRecord[AdversarialSettings]) -> list[Table]:
    """Return the accuracies of both branches by norm."""
    result = []
    for branch, title in (("", "clean"), (BRANCH, "adversarial")):
        columns = {"clean images": f"accuracy{branch}"}
        for attack in record.settings.attacks:
            columns[f"{attack}, eval-mode attack"] = RobustMetric(attack, "eval", branch).accuracy
            columns[f"{attack}, train-mode attack"] = RobustMetric(attack, "train", branch).accuracy
        columns["training, clean branch"] = "train_accuracy"
        finding = (
            f"Test accuracy in % of the {title} branch, mean ± sd over seeds: on clean images, and on images attacked with norms "
            "in eval and in train mode (the network classifies in eval mode); and training accuracy of the clean branch."
        )
        result.append(result_table(metric_rows(record.rows, "norm", record.settings.norms, columns), finding))
    return result


def panels(settings: AdversarialSettings) -> dict[str, dict[str, str]]:
    """Return the panels of the picture: one per branch, under the longest attack."""
    attack = settings.attacks[-1]
    return {
        f"{title} branch, attacked by {attack}": {
            "clean images": f"accuracy{branch}",
            "eval-mode attack": RobustMetric(attack, "eval", branch).accuracy,
            "train-mode attack": RobustMetric(attack, "train", branch).accuracy,
        }
        for branch, title in (("", "clean"), (BRANCH, "adversarial"))
    }


def draw_losses(record: RecipeRecord[AdversarialSettings], path: Path) -> list[Path]:
    """Plot the test losses of both branches against steps, AuxBN and SaAuxBN (Fig. 6); nothing if the record has none."""
    if not record.settings.has_losses:
        return []
    fig = Figure(figsize=(9, 3.4), layout="constrained")
    panels = {"clean_loss": "clean loss, clean branch", "adversarial_loss": "adversarial loss, adversarial branch"}
    for ax, (column, title) in zip(fig.subplots(1, 2), panels.items(), strict=True):
        series: dict[str, dict[int, list[float]]] = {}
        for norm in (AUX_BN, SA_AUX_BN):
            points = series.setdefault(norm, {})
            for curves in select(record.rows, "loss_curves", norm=norm):
                for step, value in zip(curves["step"], curves[column], strict=True):
                    points.setdefault(step, []).append(value)
        draw.lines(series, ax, xlabel="step", ylabel="cross entropy, test images", title=title)
        ax.legend(frameon=False)
    return save_figure(fig, path.with_name(f"{path.name}.losses"))


def plot_all(record: RecipeRecord[AdversarialSettings], path: Path) -> list[Path]:
    """Plot the accuracies by norm, and the test losses."""
    return plot(record, path, panels=panels) + draw_losses(record, path)
