"""Controls and claims of `hn_fluctuation`: the paper's four observations (sec. 4.6), for each layer.

    1. BN's mean and std fluctuate more than EN's. For the mean this is a theorem: EN's mean is the average of BN's over neurons,
       and the std of an average is at most the average of the stds. For the std it is nearly one: EN's variance averages those of
       the neurons, and adds the variance between their means, which fluctuates little.
    2. |BN_mean − EN_mean| is larger than |BN_std − EN_std|, "obvious" in layers 1, 3 and 4 at batch size 128.
    3. BN's std fluctuates more than its mean, and dramatically at batch size 4. The paper says so in general and names the panels
       of layers 2 to 4; in the first layer it is the mean that fluctuates more.
    4. Statistics fluctuate more in the first layer than in each later one.

The paper shows one setting, whose axes fit SGD without momentum: claims about other momenta are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anynorm.lab.recipes.hn.fluctuation.settings import LAYERS, STATISTICS, FluctuationSettings
from anynorm.lab.recipes.support.claims import OURS, RATIO, Check, Claim, Larger, Level, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Computed, Measured
from anynorm.lab.training.sweep import Cell

PAPER_MOMENTUM = 0.0
"""The momentum of the paper's figures, according to their axes."""
PANELS = {128: "aceg", 4: "bdfh"}
"""The panels of Fig. 7 by batch size, one per layer."""
OBVIOUS, DRAMATIC = "aeg", "dfh"
"""The panels that the paper names for its second and for its third observation."""
LEAST_PROBABILITY = 60.0
"""Probability in % of the right class in the last step with which a network has learned; chance is 10."""


def conditions(settings: FluctuationSettings) -> list[Cell]:
    """Return the cells without seeds."""
    return [{"batch_size": size, "momentum": momentum} for momentum in settings.momenta for size in settings.batch_sizes]


def controls(settings: FluctuationSettings) -> list[Control]:
    """Return that each network has learned: by its training accuracy or, without a threshold, by the loss of its last step."""
    if settings.min_train_accuracy is not None:
        return [Learned(settings.min_train_accuracy)]
    return [
        Requirement(_learned(cell), Computed(_probability, [Measured("loss", cell)]), LEAST_PROBABILITY)
        for cell in conditions(settings)
    ]


def claims(settings: FluctuationSettings) -> list[Claim | Check]:
    """Return the four observations, layer by layer, for each momentum and batch size."""
    result: list[Claim | Check] = []
    for cell in conditions(settings):
        result += [_theorem(cell, layer) for layer in LAYERS]
        for layer in LAYERS:
            result += [_std_of_bn_and_en(settings, cell, layer), _differences(settings, cell, layer)]
            result.append(_std_and_mean(settings, cell, layer))
        result += [_first_layer(settings, cell, name, later) for name in STATISTICS for later in LAYERS[1:]]
    for momentum in settings.momenta:
        result += [_small_batch(settings, momentum, layer) for layer in LAYERS]
    return result


def _theorem(cell: Cell, layer: int) -> Check:
    return Check(
        statement=f"{_condition(cell, f'layer {layer}')}: BN_mean fluctuates at least as much as EN_mean",
        reason="EN's mean is the average of BN's: the std of an average is at most the average of the stds",
        larger=Measured(f"bn_mean {layer}", cell),
        smaller=Measured(f"en_mean {layer}", cell),
    )


def _std_of_bn_and_en(settings: FluctuationSettings, cell: Cell, layer: int) -> Larger:
    """Return observation 1 for the std."""
    statement = f"{_condition(cell, f'layer {layer}')}: BN_std fluctuates more than EN_std"
    sides = Measured(f"bn_std {layer}", cell), Measured(f"en_std {layer}", cell)
    return _claim(settings, 1, statement, sides, Source("hn", "Fig. 6", "Statistics of BN are more fluctuant than EN"))


def _differences(settings: FluctuationSettings, cell: Cell, layer: int) -> Larger:
    """Return observation 2."""
    panel = PANELS[cell["batch_size"]][layer - 1]
    statement = f"{_condition(cell, f'layer {layer}')}: |BN_mean − EN_mean| > |BN_std − EN_std|"
    sides = Measured(f"mean_difference {layer}", cell), Measured(f"std_difference {layer}", cell)
    quote = "obvious in Figure 7(a), 7(e), 7(g)" if panel in OBVIOUS else ""
    return _claim(settings, 2, statement, sides, Source("hn", f"Fig. 7{panel}", quote))


def _std_and_mean(settings: FluctuationSettings, cell: Cell, layer: int) -> Larger:
    """Return the first sentence of observation 3, at the panels that the paper names for it and else in Fig. 6."""
    panel = PANELS[cell["batch_size"]][layer - 1]
    statement = f"{_condition(cell, f'layer {layer}')}: BN_std fluctuates more than BN_mean"
    sides = Measured(f"bn_std {layer}", cell), Measured(f"bn_mean {layer}", cell)
    source = Source("hn", f"Fig. 7{panel}" if panel in DRAMATIC else "Fig. 6", "BN_mean is flatter than BN_std")
    return _claim(settings, 3, statement, sides, source)


def _small_batch(settings: FluctuationSettings, momentum: float, layer: int) -> Larger:
    """Return the second sentence of observation 3: the std fluctuates more at the small batch size than at the large one."""
    large, small = ({"batch_size": size, "momentum": momentum} for size in settings.batch_sizes)
    sizes = f"layer {layer}, batch {small['batch_size']} against {large['batch_size']}"
    statement = f"{sizes}{_momentum(large)}: BN_std fluctuates more"
    sides = Measured(f"bn_std {layer}", small), Measured(f"bn_std {layer}", large)
    quote = "When the batch size is 4, as shown in Figure 6, 7(d), 7(f), 7(h), BN_std's fluctuations become dramatic"
    return _claim(settings, 3, statement, sides, Source("hn", "Fig. 6", quote))


def _first_layer(settings: FluctuationSettings, cell: Cell, name: str, later: int) -> Larger:
    """Return observation 4 for a statistic and a later layer."""
    statement = f"{_condition(cell, f'layer 1 against {later}')}: {name[:2].upper()}{name[2:]} fluctuates more"
    sides = Measured(f"{name} 1", cell), Measured(f"{name} {later}", cell)
    quote = "Statistics in the first layer have more significant fluctuations than following layers"
    return _claim(settings, 4, statement, sides, Source("hn", "Fig. 6", quote))


def _claim(
    settings: FluctuationSettings, number: int, statement: str, sides: tuple[Measured, Measured], source: Source
) -> Larger:
    """Return a claim about a layer; the layers of the same networks are counted once per observation.

    Args:
        settings: the settings.
        number: the number of the observation.
        statement: the claim as a sentence.
        sides: the larger and the smaller quantity.
        source: where the paper makes the claim, if the momentum is that of the paper.
    """
    first, second = (side.cell for side in sides)
    cells = [first] if first == second else [first, second]
    sizes = " and ".join(str(cell["batch_size"]) for cell in cells)
    return Larger(
        statement=statement,
        source=source if first["momentum"] == PAPER_MOMENTUM else OURS,
        larger=sides[0],
        smaller=sides[1],
        scale=RATIO,
        level=Level.LAYER,
        group=f"hn sec. 4.6, observation {number}, batch {sizes}{_momentum(first)}",
        requires=() if settings.min_train_accuracy is not None else tuple(map(_learned, cells)),
    )


def _condition(cell: Cell, layers: str) -> str:
    """Return layers, batch size and, if it is not the paper's, momentum: what differs between statements comes first."""
    return f"{layers}, batch {cell['batch_size']}{_momentum(cell)}"


def _momentum(cell: Mapping[str, Any]) -> str:
    return "" if cell["momentum"] == PAPER_MOMENTUM else f", momentum {cell['momentum']:g}"


def _learned(cell: Mapping[str, Any]) -> str:
    """Return the name of the control of a cell."""
    return f"probability of the right class (%), batch {cell['batch_size']}, momentum {cell['momentum']:g}"


def _probability(loss: float) -> float:
    return 100 * math.exp(-loss)
