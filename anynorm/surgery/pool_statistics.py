"""Exact pooling of the running statistics of several models, such as those of the clients in federated learning.

The mean and variance of the union of the data of all models i with n_i values, by the law of total variance:

    mean = Σ wᵢ meanᵢ        var = Σ wᵢ (varᵢ + (meanᵢ − mean)²)        wᵢ = nᵢ / Σ n

with biased variances; running variances are unbiased, n / (n − 1) times as large. An average of the variances alone would miss
the term (meanᵢ − mean)², the variance between the models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.core.moments import Moments, bessel_correction, pool_stacked
from anynorm.errors import SurgeryError
from anynorm.surgery.find import NormSite, find_norms

_COUNTERS = ("num_batches_tracked", "num_values_tracked")


@torch.no_grad()
def pool_statistics(models: Sequence[nn.Module], weights: Sequence[float], target: nn.Module | None = None) -> dict[str, Tensor]:
    """Return the running statistics of the union of the data of several models of the same architecture.

    Norms of anynorm and of torch are supported. Parameters are not averaged, and the models are not changed.

    Args:
        models: the models.
        weights: number of values per channel (samples × positions) from which the statistics of each model were estimated, or
            its number of samples: the factor n / (n − 1) of unbiased variances then is that of n samples. Models with weight 0
            are left out. A domain is left out for a model that has not seen it (num_batches_tracked is 0).
        target: a model of the same architecture, into which the result is written too.

    Returns:
        Running means, running variances and counters (summed) by their names in the state_dict, for
        `load_state_dict(…, strict=False)`.

    Raises:
        SurgeryError: if models or weights are invalid, if the norms of the models differ, if a running statistic is not finite,
            or if a variance cannot be pooled, because the mean of its cut is neither tracked nor determined by tracked means.

    >>> clients = [nn.Sequential(nn.BatchNorm1d(1)) for _ in range(2)]
    >>> for client, mean in zip(clients, (-1.0, 3.0)):
    ...     _ = client[0].running_mean.fill_(mean)
    >>> pooled = pool_statistics(clients, [30_000, 10_000])
    >>> print(f"{pooled['0.running_mean'].item():.2f} {pooled['0.running_var'].item():.2f}")
    0.00 4.00
    """
    if isinstance(models, nn.Module):  # a Sequential can be iterated
        raise SurgeryError(f"models must be a list of models; got one {type(models).__name__}.")
    models = list(models)
    counts = _check_weights(weights, len(models))
    every = [_tracking_norms(model, f"models[{index}]") for index, model in enumerate(models)]
    used = [index for index, count in enumerate(counts) if count > 0]
    first = every[used[0]]
    named = [(f"models[{index}]", sites) for index, sites in enumerate(every)]
    targets = None if target is None else _tracking_norms(target, "target")
    for name, sites in [*named, *([] if targets is None else [("target", targets)])]:
        _check_same(first, sites, name, f"models[{used[0]}]")
    pooled: dict[str, Tensor] = {}
    for position, site in enumerate(first):
        members = [every[index][position] for index in used]
        tables = _pool_site(members, [counts[index] for index in used], used)
        for path in site.paths:
            pooled |= {f"{path}.{name}" if path else name: table for name, table in tables.items()}
        for name, table in tables.items() if targets is not None else ():
            targets[position].module.get_buffer(name).copy_(table)  # type: ignore[index]
    return pooled


def _check_weights(weights: Any, num_models: int) -> list[float]:
    if not isinstance(weights, Iterable):
        raise SurgeryError(f"weights must be a list with one number per model; got {weights!r}.")
    values = weights.flatten().tolist() if isinstance(weights, Tensor) else list(weights)
    if not num_models:
        raise SurgeryError("models must hold at least one model; got none.")
    if len(values) != num_models:
        raise SurgeryError(f"weights must have one number per model, {num_models}; got {len(values)}.")
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise SurgeryError(f"weights must be finite numbers of at least 0; got {value!r} for models[{index}].")
    if not sum(values):
        raise SurgeryError(f"One of the weights must be positive; got {values}.")
    return [float(value) for value in values]


def _tracking_norms(model: Any, name: str) -> list[NormSite]:
    if not isinstance(model, nn.Module):
        raise SurgeryError(f"{name} must be an nn.Module; got a {type(model).__name__}.")
    sites = [site for site in find_norms(model) if not site.unsupported and site.info.running_stats]
    if not sites:
        raise SurgeryError(f"{name} ({type(model).__name__}) has no norm with running statistics to pool.")
    return sites


def _check_same(first: list[NormSite], sites: list[NormSite], name: str, first_name: str) -> None:
    """Check that two models have the same norms with running statistics, of the same shapes."""
    expected, actual = (
        [("' = '".join(site.paths), site.info.norm_spec, _shapes(site)) for site in each] for each in (first, sites)
    )
    for index in range(max(len(expected), len(actual))):
        ours, theirs = (entries[index] if index < len(entries) else None for entries in (expected, actual))
        if ours != theirs:
            shown = ["no norm" if each is None else f"'{each[0]}' ({each[1]}, {_describe(each[2])})" for each in (theirs, ours)]
            raise SurgeryError(
                f"All models must have the same norms with running statistics; {name} has {shown[0]} where {first_name} has "
                f"{shown[1]}."
            )


def _shapes(site: NormSite) -> list[tuple[int, ...] | None]:
    return [None if buffer is None else tuple(buffer.shape) for pair in site.info.running_stats.values() for buffer in pair]


def _describe(shapes: list[tuple[int, ...] | None]) -> str:
    return " ".join(str(shape) for shape in shapes if shape is not None)


def _pool_site(members: list[NormSite], counts: list[float], indices: list[int]) -> dict[str, Tensor]:
    """Return the pooled buffers of one norm by name, given its sites in the models with these indices."""
    site, norm_spec = members[0], members[0].info.norm_spec
    if norm_spec.soft_assignment:
        raise SurgeryError(
            f"'{site.path}' ({site.label}) assigns samples to modes with fractional weights, so the number of values of a mode "
            "is unknown and its statistics cannot be pooled."
        )
    for member, index in zip(members, indices, strict=True):
        for buffer in (each for pair in member.info.running_stats.values() for each in pair if each is not None):
            if not bool(buffer.isfinite().all()):
                raise SurgeryError(
                    f"Running statistics must be finite; those of '{member.path}' of models[{index}] are not. Give this model "
                    "the weight 0, or recalibrate it."
                )
    weights = torch.stack([_values_per_channel(member, count) for member, count in zip(members, counts, strict=True)])
    result: dict[str, Tensor] = {}
    for cut, pair in site.info.running_stats.items():
        moments = [_moments(member, cut, weight) for member, weight in zip(members, weights, strict=True)]
        merged = pool_stacked(Moments(*(torch.stack(tables) for tables in zip(*moments, strict=True))))
        seen = merged.count > 0
        tables = (merged.mean, merged.unbiased_var(site.info.norm_spec.correction))
        for running, table in zip(pair, tables, strict=True):
            if running is not None:
                new = torch.where(seen, table, torch.full_like(table, float(running is pair[1])))
                result[_name_of(site.module, running)] = new.reshape(running.shape).to(running.dtype)
    for name in _COUNTERS:
        counters = [getattr(member.module, name, None) for member in members]
        if all(counter is not None for counter in counters):
            result[name] = torch.stack([counter.cpu() for counter in counters]).sum(0).to(counters[0].device)  # type: ignore[union-attr]
    return result


def _name_of(module: nn.Module, buffer: Tensor) -> str:
    return next(name for name, each in module.named_buffers() if each is buffer)


def _values_per_channel(site: NormSite, count: float) -> Tensor:
    """Return the number of values per channel of each domain, (domains or 1, 1, 1); 0 for a domain that was not seen."""
    num_domains = site.info.norm_spec.num_stat_sets
    counts = torch.full((num_domains or 1, 1, 1), count, dtype=torch.float64)
    tracked = getattr(site.module, "num_batches_tracked", None)
    if num_domains and tracked is not None:
        counts = torch.where(tracked.cpu().reshape(-1, 1, 1) > 0, counts, torch.zeros_like(counts))
    return counts


def _moments(site: NormSite, cut: Cut, values: Tensor) -> Moments:
    """Return the running statistics of a cut as moments of a number of values per channel, in float64 on the CPU."""
    info = site.info
    _, channels, strips = cut.parts((1, info.channels, 1))
    shape = (values.shape[0], channels, strips)
    mean, var = (None if buffer is None else buffer.cpu().double().reshape(shape) for buffer in info.running_stats[cut])
    count = (values * (info.channels / (channels * strips))).expand(shape)
    if mean is None:
        mean = _derive_mean(site, cut, shape) if info.norm_spec.mean else torch.zeros(shape, dtype=torch.float64)
    correction = info.norm_spec.correction
    biased = torch.zeros(shape, dtype=torch.float64) if var is None else var / bessel_correction(count, correction)
    return Moments(mean, biased, count)


def _derive_mean(site: NormSite, cut: Cut, shape: tuple[int, int, int]) -> Tensor:
    """Return the means of a cut whose means are not tracked, from those of a finer cut."""
    for other, (mean, _) in site.info.running_stats.items():
        _, channels, strips = other.parts((1, site.info.channels, 1))
        if mean is None or cut.crosses_channels or other.crosses_channels or channels % shape[1] or strips % shape[2]:
            continue
        parts = mean.cpu().double().reshape(shape[0], shape[1], channels // shape[1], shape[2], strips // shape[2])
        return parts.mean((2, 4))
    raise SurgeryError(
        f"'{site.path}' ({site.label}) tracks variances of {cut} without means from which the variance between models follows. "
        "Use update_rule=anynorm.Pooled(), which tracks both."
    )
