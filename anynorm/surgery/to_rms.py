"""LayerNorm as RMSNorm: `to_rms` centers what writes the residual stream, so that no norm has to subtract the mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.cuts import ALL, Cut
from anynorm.core.spec import SCALE_AFFINE, NormSpec
from anynorm.errors import SurgeryError
from anynorm.layers.channel_axis import resolve_axis
from anynorm.norms import RMSNorm
from anynorm.surgery.batches import Forward
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.new_norm import make_replacement
from anynorm.surgery.output_change import Run, call_with_inputs, describe, is_rounding, output_change
from anynorm.surgery.replace import truncate_list
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.tensor_graph import NORM, Graph, Op, Source, record_graph
from anynorm.surgery.undo import UndoLog, all_or_nothing
from anynorm.surgery.zero_mean import Centering, NotCenteredError, check_readers, find_writers


def to_rms(
    model: nn.Module, example: Any, where: Where = None, *, untie: bool = False, forward: Forward | None = None
) -> SurgeryReport:
    """Turn LayerNorms over the channels of each position into RMSNorms, in place, with the same output.

    Embeddings, parameters and the last layers of all blocks that are added to the residual stream are centered over channels. The
    mean of the stream is zero then, and LayerNorm is RMSNorm with the same γ and β. A norm stays if something else reads the
    stream, or writes it without weights that could be centered.

    Args:
        model: the model.
        example: an input of the model, or a tuple of inputs. The model runs on it to find what writes and reads the input of each
            norm, and again to compare the outputs.
        where: which norms to change, as in `convert`; None for all.
        untie: whether an embedding that is tied to a classifier may get a weight of its own; only this one is centered.
        forward: a function `forward(model, example)` that calls the model; None to call it with the input or inputs.

    Returns:
        A report with one row per norm, with the reason in the column `note` if it stays, and one row per changed tensor.

    Raises:
        SurgeryError: if no norm can be changed, with the reasons, or if the output would change. The model is unchanged.

    >>> model = nn.Sequential(nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50)).eval()
    >>> report = to_rms(model, torch.arange(8)[None])
    >>> report["1"]["new_norm"], report["0.weight"]["note"]
    ('0/pn', 'centered over axis 1')
    """
    check_model(model)
    return _to_rms(model, lambda model: (forward or call_with_inputs)(model, example), where, untie)


@torch.no_grad()
def _to_rms(model: nn.Module, run: Run, where: Where, untie: bool) -> SurgeryReport:
    all_sites = find_norms(model)
    sites = choose(all_sites, where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that anynorm recognizes: there is no LayerNorm to change.")
    graph = record_graph(model, run, [site.module for site in all_sites])
    centerings: set[Centering] = set()
    reasons: dict[NormSite, str] = {}
    for site in sites:
        try:
            centerings |= _centerings(site, all_sites, graph, centerings, untie)
        except NotCenteredError as error:
            reasons[site] = str(error)
    converted = [site for site in sites if site not in reasons]
    if not converted:
        lines = [f"  {site.path or 'the model itself'} ({site.label}): {reason}" for site, reason in reasons.items()]
        raise SurgeryError("\n".join(["No norm can become an RMSNorm; nothing was changed.", *truncate_list(lines)]))
    changed = model
    with all_or_nothing() as undo_log:
        new_norms = {site: make_replacement(site, _zero_mean_spec(site), {}).norm for site in converted}
        for site, norm in new_norms.items():
            undo_log.replace(site, norm)
            changed = changed if site.parents else norm
        notes = _change_tensors(centerings, graph, undo_log)
        change = output_change(changed, run, graph.output)
        if not is_rounding(changed, change, graph.output):
            raise SurgeryError(f"Centering changed the output by {change:.2g} of its largest value; nothing was changed.")
    rows: list[dict[str, Any]] = []
    for site in sites:
        new_norm, note = (new_norms[site].spec, "") if site in new_norms else (None, f"not changed: {reasons[site]}")
        rows.append({"path": site.path, "norm": site.label, "new_norm": new_norm, "note": note or None})
    rows += [{"path": path, "norm": None, "new_norm": None, "note": note} for path, note in notes.items()]
    effect = describe(change, graph.output)
    finding = f"{len(converted)} of {len(sites)} norms changed, {len(notes)} tensors centered or scaled; {effect}."
    return SurgeryReport(rows, finding, changed, undo_log.undo, model)


def _centerings(
    site: NormSite, all_sites: Iterable[NormSite], graph: Graph, centerings: set[Centering], untie: bool
) -> set[Centering]:
    """Return what must be centered for a norm to become an RMSNorm, in addition to what is centered for other norms.

    Raises:
        NotCenteredError: with the reason if it cannot.
    """
    if not _subtracts_channel_mean(site):
        reason = site.unsupported or f"{site.info.spec} does not subtract the mean over the channels of each position"
        raise NotCenteredError(reason)
    calls = graph.calls_of(site.module)
    if not calls:
        raise NotCenteredError("it does not run on the example")
    new: set[Centering] = set()
    for call in calls:
        new |= find_writers(call.inputs[0], _channel_axis(site, call))
    sites = {each.module: each for each in all_sites}

    def ignores_shift(op: Op, axis: int) -> bool:
        if op.name != NORM:
            return len(op.args[1]) == 1 and axis == op.inputs[0].tensor.dim() - 1
        reader = sites[op.module]
        return _subtracts_channel_mean(reader) and len(op.inputs) == 1 and axis == _channel_axis(reader, op)

    check_readers(graph, centerings | new, ignores_shift)
    if not untie:
        _check_ties(graph, centerings | new)
    return new


def _subtracts_channel_mean(site: NormSite) -> bool:
    """Whether a norm is a LayerNorm over the channels of each position."""
    if site.unsupported or site.info.norm_spec.custom or site.info.post_modules:
        return False
    cuts = {(cut.samples, cut.channels, cut.space) if isinstance(cut, Cut) else None for cut in site.info.norm_spec.mean}
    return site.info.norm_spec.mean == site.info.norm_spec.var and cuts == {(ALL, 1, ALL)}


def _channel_axis(site: NormSite, call: Op) -> int:
    return resolve_axis(site.info.channel_axis, call.inputs[0].tensor.dim())


def _zero_mean_spec(site: NormSite) -> NormSpec:
    """Return the definition of a norm with a mean of 0: rms if it has no β."""
    old, rms = site.info.norm_spec, RMSNorm.named_spec({})
    if old.affine == SCALE_AFFINE:
        return rms
    return NormSpec((), old.var, affine=old.affine) if old.affine.stages else rms.without_affine()


def _check_ties(graph: Graph, centerings: Iterable[Centering]) -> None:
    """Raise NotCenteredError if a tensor that is centered is also registered where it is not centered in the same way."""
    changes = {centering.source: centering[1:] for centering in centerings}
    for source, change in changes.items():
        for other in graph.registered[id(source.tensor)]:
            if other in graph.sources and changes.get(other) != change:
                raise NotCenteredError(
                    f"{source.path}, which is centered, is tied to {other.path}, which is not. "
                    f"untie=True gives {source.path} a tensor of its own"
                )


def _change_tensors(centerings: Iterable[Centering], graph: Graph, undo_log: UndoLog) -> dict[str, str]:
    """Center tensors, and set the γ of LayerScales to one; return what was done by the paths of the tensors."""
    order = list(graph.sources)
    notes: dict[str, str] = {}
    new: dict[Source, Tensor] = {}
    tied: dict[tuple[int, Any], Tensor] = {}
    for centering in sorted(centerings, key=lambda centering: order.index(centering.source)):
        source, axis, scale = centering
        notes[source.path] = f"centered over axis {axis}" if scale is None else f"times {scale.path}, centered over axis {axis}"
        key = (id(source.tensor), centering[1:])
        if key not in tied:
            tied[key] = _like(source.tensor, centering.apply(source.tensor))
        new[source] = tied[key]
        if scale is not None and scale not in new:
            notes[scale.path], new[scale] = "set to 1", _like(scale.tensor, torch.ones_like(scale.tensor))
    for source, tensor in list(new.items()):
        unused = [other for other in graph.registered[id(source.tensor)] if other not in graph.sources]
        new.update(dict.fromkeys(unused, tensor))
    for source, tensor in new.items():
        undo_log.set_tensor(source.module, source.name, tensor)
    return notes


def _like(old: Tensor, new: Tensor) -> Tensor:
    """Return a tensor as a parameter if the old one is a parameter."""
    return nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
