"""Claims of `sn_average`: sec. 2.1 (Inference), Fig. 5 and App. A of sn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anynorm.lab.recipes.sn.batch_average import averaged_column
from anynorm.lab.recipes.support.claims import UNITS, Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.quantities import Measured, accuracy_of

FIGURE = Source("sn", "Fig. 5")
APPENDIX = Source("sn", "App. A")
INFERENCE = Source("sn", "sec. 2.1, inference")


def epoch_claims(batch_sizes: Sequence[int], epochs: Sequence[int]) -> list[Claim]:
    """Return the claims of settings that test separate networks after some epochs."""
    result: list[Claim] = []
    for size in batch_sizes:
        for epoch in epochs:
            cell = {"batch_size": size, "epoch": epoch}
            is_last = epoch == max(epochs)
            result += _final_claims(f"(batch {size}, after epoch {epoch})", "averaged", cell, is_last=is_last)
    return result


def curve_claims(batch_sizes: Sequence[int], averaged_samples: Sequence[int]) -> list[Claim]:
    """Return the claims of settings that test one network at every evaluation with both averages."""
    result: list[Claim] = []
    fewest, most = averaged_samples[0], averaged_samples[-1]
    for size in batch_sizes:
        cell, condition = {"batch_size": size}, f"(batch {size})"
        result += _final_claims(f"{condition[:-1]}, at the end)", averaged_column(most), cell, is_last=True)
        result += _convergence_claims(condition, cell)
        result.append(
            Equivalent(
                statement=f"SN is as accurate with a batch average over {fewest} samples as over {most} {condition}",
                source=INFERENCE._replace(quote="It can be computed by using a small amount of samples."),
                published=Published(76.90, 76.92),
                first=Measured(averaged_column(fewest), {"norm": "sn", **cell}),
                second=Measured(averaged_column(most), {"norm": "sn", **cell}),
                delta=0.5,
            )
        )
    return result


def _final_claims(condition: str, column: str, cell: dict[str, Any], *, is_last: bool) -> list[Claim]:
    """Return the claims about accuracies after an epoch; numbers of the paper are those of the end at 32 samples per device."""
    batch, moving = Measured(column, {"norm": "sn", **cell}), accuracy_of(norm="sn", **cell)
    bn_batch, bn_moving = Measured(column, {"norm": "bn", **cell}), accuracy_of(norm="bn", **cell)
    early = FIGURE._replace(quote="SN with batch average converges faster than BN and SN that use moving average")
    at_32 = is_last and cell["batch_size"] == 32
    result: list[Claim] = []
    if at_32:
        result.append(
            Equivalent(
                statement=f"SN is as accurate with the batch average as with the moving average {condition}",
                source=INFERENCE._replace(quote="App. A: similar results of 76.9% when converged"),
                published=Published(76.92, 76.89),
                first=batch,
                second=moving,
                delta=0.5,
            )
        )
    else:
        source = APPENDIX._replace(
            quote="for all batch settings, SN with batch average provides results better than moving average"
        )
        result.append(
            Larger(
                statement=f"SN is more accurate with the batch average than with the moving average {condition}",
                source=source if is_last else early,
                larger=batch,
                smaller=moving,
            )
        )
    result.append(
        Larger(
            statement=f"SN with the batch average is more accurate than BN {condition}",
            source=APPENDIX if is_last else early,
            published=Published(76.92, 76.4) if at_32 else None,
            larger=batch,
            smaller=bn_moving,
        )
    )
    if is_last:
        quote = "the conventional BN can be improved by replacing moving average by using batch average"
        result.append(
            Larger(
                statement=f"BN is more accurate with the batch average than with the moving average {condition}",
                source=APPENDIX._replace(quote=quote),
                larger=bn_batch,
                smaller=bn_moving,
            )
        )
    return result


def _convergence_claims(condition: str, cell: dict[str, Any]) -> list[Claim]:
    """Return that SN with the batch average converges faster and more stably than SN and BN with the moving average."""
    result: list[Claim] = []
    for norm in ("sn", "bn"):
        other = f"{norm.upper()} with the moving average {condition}"
        group = f"sn Fig. 5, SN with the batch average and {norm.upper()}, batch {cell['batch_size']}"
        result.append(
            Larger(
                statement=f"SN with the batch average converges faster (mean accuracy of all evaluations) than {other}",
                source=FIGURE,
                larger=Measured("batch_area", {"norm": "sn", **cell}),
                smaller=Measured("moving_area", {"norm": norm, **cell}),
                group=group,
            )
        )
        result.append(
            Larger(
                statement=f"SN with the batch average converges more stably (change per evaluation) than {other}",
                source=FIGURE,
                larger=Measured("moving_change", {"norm": norm, **cell}),
                smaller=Measured("batch_change", {"norm": "sn", **cell}),
                scale=UNITS,
                group=group,
            )
        )
    return result
