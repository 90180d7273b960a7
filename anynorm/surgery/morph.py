"""Gradual replacement of norms during training: each layer passes from the old to the new statistics over a number of steps.

    mean = (1 − t) mean_old + t mean_new      var = (1 − t) var_old + t var_new      t from 0 to 1

`convert` replaces the statistics at once, and training has to repair what that changes. `morph` changes them so slowly that the
weights follow. At t = 1 the layers are replaced by those that `convert` makes. The layers in between are in
`anynorm.layers.morphing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError, SurgeryError
from anynorm.layers.morphing import MorphingNorm, Ramp, Schedule, join
from anynorm.layers.norm import Norm
from anynorm.registry import split_options
from anynorm.surgery.batches import Forward
from anynorm.surgery.convert import convert
from anynorm.surgery.find import NormSite, Where, find_norms
from anynorm.surgery.new_norm import copy_hooks, copy_hooks_and_parametrizations, set_post_modules
from anynorm.surgery.optimizer import replace_in_optimizer
from anynorm.surgery.replace import truncate_list
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.transfer import Transfer, transfer_affine
from anynorm.surgery.undo import UndoLog, all_or_nothing
from anynorm.table import pluralize

OPTIONS = ("affine", "bias", "momentum", "update_rule", "single_value")
"""The options of layers that `morph` takes; the others, such as eps, stay those of the old layer."""


@dataclass
class Morph(SurgeryReport):
    """Report of `morph`, with one row per norm, and the control of its layers: `step`, `t`, `finish` and `undo`.

    Attributes:
        steps: number of steps from t = 0 to t = 1.
        schedule: the function from the finished fraction of the steps to t.
        optimizer: the optimizer whose steps are counted; None if `step` is called.
    """

    steps: int = 1
    schedule: Schedule = Ramp()
    optimizer: torch.optim.Optimizer | None = None
    _layers: dict[NormSite, MorphingNorm] = field(repr=False, default_factory=dict)
    _remove_hook: Callable[[], None] = field(repr=False, default=lambda: None)
    _is_undone: bool = field(repr=False, default=False)

    @property
    def is_finished(self) -> bool:
        """Whether the layers were replaced by the new layers."""
        return not self._layers and not self._is_undone

    @property
    def num_steps(self) -> int:
        """Number of finished steps; read from the layers, so that it is right after a checkpoint was loaded."""
        return min((layer.steps_done for layer in self._layers.values()), default=self.steps)

    @property
    def t(self) -> float:
        """The weight of the new statistics."""
        return next((float(layer.t) for layer in self._layers.values()), 0.0 if self._is_undone else 1.0)

    def step(self) -> float:
        """Finish one step, and return the new t; call it after each `optimizer.step()`, unless `morph` has the optimizer.

        At t = 1 the layers are replaced (`finish`), except in distributed training: wrappers such as DDP hold references to their
        tensors. There, call `finish` after training; until then, the layers compute what the new ones will.

        Raises:
            SurgeryError: if the optimizer counts the steps, or the morph was undone.
        """
        if self._layers:
            self.check_steps_are_free()
        self._check_not_undone("step")
        return self._step()

    def check_steps_are_free(self) -> None:
        """Check that no optimizer takes the steps.

        Raises:
            SurgeryError: if one does.
        """
        if self.optimizer is not None:
            raise SurgeryError(
                "Each step of the optimizer that was passed to morph is a step of the morph already. Do not call step() too, and "
                "pass no optimizer to morph for a callback."
            )

    def _step(self) -> float:
        if not self._layers:
            return 1.0
        self.advance_to(self.num_steps + 1)
        is_distributed = dist.is_available() and dist.is_initialized()
        if self.num_steps >= self.steps and not is_distributed:
            self.finish()
        return self.t

    def advance_to(self, num_steps: int) -> None:
        """Set the number of finished steps; the layers stay, also at t = 1.

        Args:
            num_steps: the number, for example from a trainer that counts its steps; a larger number than `steps` is t = 1.

        Raises:
            SurgeryError: if the number is negative, the morph was undone, or the layers were replaced.
        """
        self._check_not_undone("advance_to")
        if num_steps < 0:
            raise SurgeryError(f"num_steps must be at least 0; got {num_steps}.")
        if not self._layers:
            raise SurgeryError("The morph has finished: its layers were replaced by the new ones. Undo it, and morph again.")
        progress = min(num_steps / self.steps, 1.0)
        t = _value(self.schedule, progress)
        for layer in self._layers.values():
            layer.set_progress(num_steps, t)

    def finish(self) -> nn.Module:
        """Replace the layers by the new ones, whatever t is, and return the model; if it has finished, do nothing more.

        The new layers are those of `convert`, with the parameters, running statistics and settings of the morphing layers.
        Parameters that the new norm does not have are removed from the optimizer.

        Raises:
            SurgeryError: if the morph was undone, or another operation has replaced one of the layers. The model is unchanged.
        """
        self._check_not_undone("finish")
        if not self._layers:
            return self.model
        root = self.model
        with all_or_nothing() as undo_log:
            pairs: list[tuple[nn.Module, nn.Module]] = []
            for site, layer in self._layers.items():
                _check_in_place(site, layer)
                plain = _finished(layer, undo_log)
                undo_log.replace(replace(site, module=layer), plain)
                pairs.append((layer, plain))
                root = root if site.parents else plain
            if self.optimizer is not None:
                replace_in_optimizer(self.optimizer, pairs, undo_log)
        self._remove_hook()
        undo_morph = self.undo_changes

        def undo() -> None:
            undo_log.undo()
            undo_morph()

        self._layers, self.undo_changes, self.model = {}, undo, root
        return root

    def undo(self) -> nn.Module:
        """Restore the old layers, with the values they had before `morph`, also after `finish`; return the original model.

        Raises:
            SurgeryError: if a later operation has replaced the same norms; undo the later operation first.
        """
        model = super().undo()
        self._remove_hook()
        self._layers, self._is_undone = {}, True
        return model

    def _check_not_undone(self, name: str) -> None:
        if self._is_undone:
            raise SurgeryError(f"{name}() needs morphing layers, and undo() has restored the old ones. Call anynorm.morph again.")


def morph(
    model: nn.Module,
    spec: str | NormSpec,
    where: Where = None,
    *,
    steps: int,
    schedule: Schedule = Ramp(),  # noqa: B008 - immutable
    fit: Any = None,
    forward: Forward | None = None,
    groups: str = "exact",
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> Morph:
    """Replace norms of a model gradually while it is trained, in place.

    The mean and the variance of each layer are (1 − t)·old + t·new, with t from 0 to 1 over a number of optimizer steps: the old
    layer at first, and the layer of `convert` at the end. Running statistics of both sides are updated. The parameters, the
    running statistics and t are in the state_dict. To resume, call `morph` with the same arguments on a new model, and load it.

    Args:
        model: the model.
        spec: spec of the new norms, such as "gn:32", or a `NormSpec`.
        where: which norms to replace, as in `convert`.
        steps: number of optimizer steps from t = 0 to t = 1.
        schedule: a function from the finished fraction of the steps to t, both from 0 to 1, with schedule(1) = 1; such as
            `Ramp(stop=0.8)`, which reaches t = 1 after 80 % of the steps.
        fit: calibration batches, as in `convert`. γ and β move from the old to the fitted values, in addition to their training.
        forward: as in `convert`.
        groups: as in `convert`.
        optimizer: optimizer in which the old parameters are replaced, with their groups and state. Each of its steps is a step of
            the morph. Without it, call `step` of the report after each step of the optimizer, and make the optimizer afterwards.
        options: options of `anynorm.make` for the new norm: num_classes, num_domains, batch_size, affine, bias, momentum,
            update_rule, single_value.

    Returns:
        A report with one row per norm, with `step`, `t`, `finish` and `undo`.

    Raises:
        SurgeryError: if an argument is invalid, there is nothing to morph, or the statistics of a pair of norms cannot be mixed,
            such as those of a norm outside the algebra. The model is unchanged.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> report = anynorm.morph(model, "gn:4", steps=4)
    >>> print(report)
    path  norm         new_norm  channels  transferred  not_transferred
    1     BatchNorm2d  gn:4      8         γ, β         running statistics
    1 norm morphs over 4 steps.
    >>> report.step(), model[1].spec
    (0.25, 'bn -> gn:4')
    >>> [report.step() for _ in range(3)], model[1]
    ([0.5, 0.75, 1.0], GroupNorm('gn:4', 8, eps=1e-05))
    """
    _check_arguments(model, steps, schedule, optimizer, options)

    def make_plain(batches: Any) -> tuple[SurgeryReport, dict[NormSite, Norm]]:
        return _converted(model, lambda: convert(model, spec, where, fit=batches, forward=forward, groups=groups, **options))

    report, plain = make_plain(None)
    rows = {row["path"]: row for row in report}
    joints, failures = {}, []
    for site, norm in list(plain.items()):
        if site.info.norm_spec == norm.norm_spec:
            rows[site.path] |= {"new_norm": None, "note": f"not converted: it is {norm.spec} already"}
            continue
        try:
            joints[site] = join(site.info.norm_spec, norm.norm_spec, norm.num_features)
        except SpecError as error:
            failures.append(f"  {site.path or 'the model itself'}: {error}")
    if failures:
        start = f"{pluralize(len(failures), 'layer')} cannot morph; nothing was changed."
        raise SurgeryError("\n".join([start, *truncate_list(failures)]))
    if not joints:
        raise SurgeryError(f"There is nothing to morph: the chosen norms are {spec} already. The model is unchanged.")
    if fit is not None:
        fitted, plain = make_plain(fit)
        rows = {row["path"]: rows[row["path"]] if rows[row["path"]]["new_norm"] is None else row for row in fitted}
        paths = {site.path: norm for site, norm in plain.items()}
        plain = {site: paths[site.path] for site in joints}
    layers = {site: _morphing_layer(site, plain[site], joint) for site, joint in joints.items()}
    return _install(model, layers, list(rows.values()), steps, schedule, optimizer)


def finish_layers(model: nn.Module) -> None:
    """Replace all morphing layers of a model by the new ones, such as those of a copy, which the report does not know.

    The model itself must not be such a layer.
    """
    with all_or_nothing() as undo_log:
        for site in find_norms(model):
            if isinstance(site.module, MorphingNorm):
                undo_log.replace(site, _finished(site.module, undo_log))


def _check_arguments(model: Any, steps: Any, schedule: Any, optimizer: Any, options: dict[str, Any]) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SurgeryError(f"steps must be an integer of at least 1, the number of optimizer steps until t = 1; got {steps!r}.")
    if not callable(schedule):
        raise SurgeryError(f"schedule must be a function from the finished fraction of the steps to t; got {schedule!r}.")
    _value(schedule, 0.0)
    if _value(schedule, 1.0) != 1:
        raise SurgeryError(f"schedule must return t = 1 at the end of the steps; got {schedule(1.0)!r} from {schedule!r}.")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise SurgeryError(f"optimizer must be a torch.optim.Optimizer; got a {type(optimizer).__name__}.")
    of_layer = split_options(options)[1]
    if other := next((name for name in of_layer if name not in OPTIONS), ""):
        raise SurgeryError(
            f"morph takes no option {other!r}: both sides of a layer have that of the old layer. Change it before or after morph."
        )
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, MorphingNorm):
            raise SurgeryError(
                f"'{path}' is morphing already ({module.spec}). Call finish() or undo() of the report of that morph first."
            )
        if type(module).__name__ == "OptimizedModule":
            raise SurgeryError(
                "The model is compiled, by torch.compile. Morph the model that was compiled, and compile it again."
            )


def _value(schedule: Schedule, progress: float) -> float:
    """Return t of a schedule.

    Raises:
        SurgeryError: if it is not a number in [0, 1].
    """
    t = schedule(progress)
    if not isinstance(t, int | float) or not 0 <= t <= 1:
        raise SurgeryError(f"schedule must return a number in [0, 1]; got {t!r} at the fraction {progress:g} of the steps.")
    return float(t)


def _converted(model: nn.Module, run: Callable[[], SurgeryReport]) -> tuple[SurgeryReport, dict[NormSite, Norm]]:
    """Return the report of a conversion and the norms that it makes; the conversion is undone."""
    sites = find_norms(model) if isinstance(model, nn.Module) else []
    report = run()
    converted = {row["path"] for row in report if row["new_norm"]}
    norms: dict[NormSite, Norm] = {}
    for site in sites:
        norm = site.parents[0][0]._modules[site.parents[0][1]] if site.parents else report.model
        if site.path in converted and isinstance(norm, Norm):
            norms[site] = norm
    report.undo()
    return report, norms


def _install(
    model: nn.Module,
    layers: dict[NormSite, MorphingNorm],
    rows: list[dict[str, Any]],
    steps: int,
    schedule: Schedule,
    optimizer: torch.optim.Optimizer | None,
) -> Morph:
    changed: nn.Module = next((layer for site, layer in layers.items() if not site.parents), model)
    verb = "norm morphs" if len(layers) == 1 else "norms morph"
    finding = f"{len(layers)} {verb} over {pluralize(steps, 'step')}."
    with all_or_nothing() as undo_log:
        for site, layer in layers.items():
            undo_log.replace(site, layer)
        if optimizer is not None:
            replace_in_optimizer(optimizer, [(site.module, layer) for site, layer in layers.items()], undo_log)
        report = Morph(rows, finding, changed, undo_log.undo, model, steps, schedule, optimizer, layers)
        report.advance_to(0)
        if optimizer is not None:
            _count_steps(report, optimizer)
    return report


def _count_steps(report: Morph, optimizer: torch.optim.Optimizer) -> None:
    """Register a hook with which each step of an optimizer is a step of the morph."""
    is_running = False

    def after_step(*_: Any) -> None:
        nonlocal is_running
        is_running = True
        try:
            report._step()
        finally:
            is_running = False

    def remove() -> None:
        hooks = optimizer._optimizer_step_post_hooks
        if not is_running or next(reversed(hooks)) == handle.id:
            handle.remove()  # otherwise the optimizer is in a loop over its hooks, and this one does nothing from now on

    handle = optimizer.register_step_post_hook(after_step)
    report._remove_hook = remove


@torch.no_grad()
def _morphing_layer(site: NormSite, plain: Norm, joint: Any) -> MorphingNorm:
    """Return the layer between the norm of a site and a new norm, with the tensors of the old one."""
    info = site.info
    tensors = [*info.tensors.values(), *(tensor for pair in info.running_stats.values() for tensor in pair if tensor is not None)]
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(()))
    layer = MorphingNorm(
        joint,
        plain,
        eps=info.eps,
        update_rule=plain.update_rule,
        track_running_stats=plain.track_running_stats if plain.pools_samples else info.track_running_stats,
        device=like.device,
        dtype=like.dtype,
        activation=plain.activation,
        single_value=plain.single_value,
        channel_axis=plain.channel_axis,
    )
    set_post_modules(layer, info.post_modules)
    layer.sync_group = info.sync_group
    transfer_affine(info, layer, Transfer())
    for name in ("weight", "bias"):
        difference, parameter = layer._buffers[f"{name}_difference"], plain._parameters.get(name)
        if difference is not None and parameter is not None:
            difference.copy_(parameter - layer._parameters[name])  # type: ignore[operator]
    for name in ("mean_weight", "var_weight"):
        for which, source in (("old", info.tensors.get(name)), ("new", plain._parameters.get(name))):
            target = layer._parameters.get(f"{which}_{name}")
            if target is not None and source is not None:
                target.copy_(source)
                target.requires_grad_(source.requires_grad)
    _copy_running_stats(site, plain, layer)
    copy_hooks_and_parametrizations(site.module, layer)
    return layer.train(site.module.training)


def _copy_running_stats(site: NormSite, plain: Norm, layer: MorphingNorm) -> None:
    """Copy the running statistics of the old norm, and of cuts that only the new norm has, those to which `convert` set them."""
    old = {_key(cut, not site.info.norm_spec.mean): pair for cut, pair in site.info.running_stats.items()}
    new = {_key(plain.cuts[k], not plain.norm_spec.mean): plain.running_stats(k) for k in plain.tracked_cuts}
    for index in layer.tracked_cuts:
        key = _key(layer.cuts[index], not layer.norm_spec.mean)
        for side, buffer in enumerate(layer.running_stats(index)):
            found = [pair[side] for pair in (old.get(key), new.get(key)) if pair is not None]
            source = next((table for table in found if table is not None), None)
            if buffer is not None and source is not None:
                buffer.copy_(source.reshape(buffer.shape))
    for name in ("num_batches_tracked", "num_values_tracked"):
        counter = getattr(layer, name, None)
        sources = [getattr(norm, name, None) for norm in (site.module, plain)]
        source = next(
            (each for each in sources if each is not None and counter is not None and each.shape == counter.shape), None
        )
        if counter is not None and source is not None:
            counter.copy_(source)


def _key(cut: Any, about_zero: bool) -> Any:
    """Return a cut as it is in a morphing layer."""
    return replace(cut, about_zero=cut.about_zero or about_zero, name="")


def _check_in_place(site: NormSite, layer: MorphingNorm) -> None:
    for parent, name in site.parents:
        if parent._modules.get(name) is not layer:
            raise SurgeryError(f"'{site.path}' has been replaced since morph: undo the later operation first.")


@torch.no_grad()
def _finished(layer: MorphingNorm, undo_log: UndoLog) -> Norm:
    """Return the new norm, with the tensors of a morphing layer as they count at t = 1, and its settings."""
    plain = layer.plain
    like = next((tensor for tensor in [*layer.parameters(), *layer.buffers()] if tensor.is_floating_point()), None)
    if like is not None:
        plain.to(like.device, _dtype(layer, like))
    for name in ("weight", "bias"):
        difference, parameter = layer._buffers[f"{name}_difference"], layer._parameters.get(name)
        if difference is not None and parameter is not None:
            parameter.add_(difference)
            undo_log.undo_steps.append(lambda parameter=parameter, d=difference: parameter.data.sub_(d))  # type: ignore[misc]
    for name in plain._parameters:
        source = layer._parameters.get(f"new_{name}" if name in ("mean_weight", "var_weight") else name)
        if plain._parameters[name] is not None and source is not None:
            plain._parameters[name] = source
    for name, parametrization in getattr(layer, "parametrizations", {}).items():
        if name in getattr(plain, "parametrizations", {}):
            plain.parametrizations[name] = parametrization  # type: ignore[operator]
    plain.update_rule = layer.update_rule
    _share_running_stats(layer, plain)
    plain.sync_group, plain.activation, plain.single_value = layer.sync_group, layer.activation, layer.single_value
    set_post_modules(plain, {name: getattr(layer, name) for name in layer.post_modules})
    copy_hooks(layer, plain)
    if layer.accumulator is not None and plain.tracked_cuts:
        plain.start_accumulation(layer.accumulator.steps)
    plain.training = layer.training
    return plain


def _dtype(layer: MorphingNorm, like: Tensor) -> torch.dtype:
    return next((parameter.dtype for parameter in layer.parameters()), like.dtype)


def _share_running_stats(layer: MorphingNorm, plain: Norm) -> None:
    """Reuse the buffers of a morphing layer in the new norm; two cuts that are equal for this number of channels share none."""
    reused: set[str] = set()
    by_cut = {_key(layer.cuts[index], not layer.norm_spec.mean): index for index in layer.tracked_cuts}
    for index in plain.tracked_cuts:
        source = layer._stat_names[by_cut[_key(plain.cuts[index], not plain.norm_spec.mean)]]
        for name, source_name in zip(plain._stat_names[index], source, strict=True):
            if name and source_name:
                buffer = layer.get_buffer(source_name)
                plain._buffers[name] = buffer.clone() if source_name in reused else buffer
                reused.add(source_name)
    for name in ("num_batches_tracked", "num_batches_skipped", "num_values_tracked"):
        if plain._buffers.get(name) is not None and layer._buffers.get(name) is not None:
            plain._buffers[name] = layer._buffers[name]
