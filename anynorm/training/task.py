"""What is trained, separate from how: the base class of tasks.

A `Task` holds networks, data, the loss of a step, optimizers and metrics; `anynorm.training.trainer.Trainer` holds the loop,
seeds, device, precision, processes, gradient accumulation, moving averages, checkpoints and curves.

    training_step(step) = for each pass of the step: loss(training_batch(step, pass)) ── backward;  then step.update(optimizer)

A task with one loss defines `num_samples`, `batch`, `loss` and `evaluate`. A task with several networks or optimizers (a GAN, a
bilevel search) overrides `training_step` and `configure_optimizers` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from anynorm.errors import DataError, SpecError
from anynorm.layers.norm import Norm
from anynorm.training.config import Config
from anynorm.training.curve import scalar
from anynorm.training.distributed import Processes
from anynorm.training.norm_layout import apply_norms
from anynorm.training.sampler import Sampler

Metrics = dict[str, Tensor]
Optimizers = dict[str, torch.optim.Optimizer]
FUSED = True
"""Whether optimizers update all parameters in one kernel; read at each call, because a device may not have it."""


class Metric(NamedTuple):
    """The metric by which norms are compared: one of those that `Task.evaluate` returns.

    Args:
        name: its name, as in `Task.evaluate`.
        unit: its unit, such as "%".
        higher_is_better: whether a larger value is a better result.
    """

    name: str = "loss"
    unit: str = ""
    higher_is_better: bool = False

    @property
    def label(self) -> str:
        """The name with the unit, as the header of a column."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def format_spec(self) -> str:
        """The format specification of a value: one decimal for percent, four digits for other units."""
        return ".1f" if self.unit == "%" else ".4g"

    def format(self, value: float) -> str:
        """Return a value with its unit.

        >>> Metric("error", "%").format(2.25)
        '2.2 %'
        """
        return f"{value:{self.format_spec}} {self.unit}".rstrip()

    def describe(self, value: float, prefix: str = "") -> str:
        """Return a value with the name of the metric.

        >>> Metric("error", "%").describe(2.25, "test ")
        '2.2 % test error'
        >>> Metric("distance", "mm").describe(0.5)
        'distance 0.5 mm'
        """
        number, name = self.format(value), prefix + self.name
        return f"{number} {name}" if self.unit == "%" else f"{name} {number}"


class Step(Protocol):
    """A training step as its task sees it."""

    @property
    def number(self) -> int:
        """The number of finished steps."""

    @property
    def progress(self) -> float:
        """The finished fraction of the training, in [0, 1)."""

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """The moving averages of networks by name, for parameters that are assigned instead of updated; empty if none."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the run's precision, for forward passes."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled in 16-bit precision."""

    def update(self, name: str = "main") -> None:
        """Average the gradients of an optimizer over the processes, update its parameters, and reset the gradients."""


class Task(nn.Module):
    """What is trained.

    The modules that a subclass assigns in `__init__` are its networks; parameters and buffers of its own are saved and resumed
    too. The global random generator has been seeded with `config.seed` when `__init__` is called.

    Args:
        config: the run.

    Attributes:
        metric: the metric by which runs are compared; see `metric_for` if it depends on the run.
        default_options: the settings of the task besides the fields of `Config`, with their default values.
        comparison_defaults: the norms, batch sizes and settings of `anynorm.compare` for this task, where none are given; the
            learning rate belongs to batch size 32.
        options: the values of these settings in this run.
        sampler: which samples a training step uses; set by the trainer.
        device: where batches are moved to; set by the trainer.
        num_workers: number of processes that may decode data; set by the trainer.
        processes: the processes that train the run; set by the trainer.
        is_trained: whether the run has no further step, so that an evaluation is the last one; set by the trainer after each
            step. True for a task that is not in training, such as that of `anynorm.training.run.load_run`.

    Raises:
        SpecError: if `config.options` has a setting that the task does not have, or of another type.
    """

    metric: ClassVar[Metric] = Metric()
    default_options: ClassVar[Mapping[str, Any]] = {}
    comparison_defaults: ClassVar[Mapping[str, Any]] = {
        "norms": ("bn", "gn:8", "sn", "hn", "bgn"),
        "batch_sizes": (2, 32),
        "data": "digits",
        "model": "resnet10",
        "epochs": 2,
        "lr": 0.05,
    }

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.options = merge_options(type(self), config.options)
        self.device, self.num_workers = torch.device("cpu"), 0
        self.processes = Processes()
        self.is_trained = True
        self.sampler: Sampler

    # What a subclass defines --------------------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The number of training samples, one epoch."""
        raise self._undefined("num_samples")

    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """Return a batch of training samples, of any type; the generator is the only source of randomness.

        Args:
            indices: numbers of the samples, below `num_samples`.
            generator: on the CPU; its seed depends on the run and the pass alone.
        """
        raise self._undefined("batch")

    def loss(self, batch: Any) -> Metrics:
        """Return the metrics of a batch as scalars, means over its samples; "loss" is minimized."""
        raise self._undefined("loss")

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the networks, which are in eval mode; gradients are disabled."""
        raise self._undefined("evaluate")

    def _undefined(self, name: str) -> DataError:
        return DataError(f"{type(self).__name__} must define {name}; see anynorm.Task.")

    # What a subclass may change -----------------------------------------------------------------------------------------------

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the metric by which a run is compared: `metric`, unless a subclass derives it from the settings of the run.

        `config.options` has the options that are not default; `merge_options(cls, config.options)` has all.
        """
        return cls.metric

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load or download the data of a run; an error here is not a result of the run, and stops its sweep."""

    @property
    def passes_per_step(self) -> int:
        """The number of batches per step and process."""
        return self.config.grad_accum_steps

    def configure_optimizers(self) -> torch.optim.Optimizer | Optimizers:
        """Return the optimizer, or several by name.

        Their learning rates follow `config.schedule`, except those of parameter groups with `"constant_lr": True`.
        """
        return make_optimizer(self.config, [self])

    def training_step(self, step: Step) -> Metrics:
        """Update the parameters once and return the metrics of the step."""
        passes = self.passes_per_step
        total: Metrics = {}
        for number in range(passes):
            with step.autocast():
                metrics = self.loss(self.training_batch(step.number, number))
            check_metrics(f"{type(self).__name__}.loss", metrics, "loss")
            step.backward(metrics["loss"] if passes == 1 else metrics["loss"] / passes)
            for name, value in metrics.items():
                total[name] = total[name] + scalar(name, value) if name in total else scalar(name, value)
        step.update()
        return total if passes == 1 else {name: value / passes for name, value in total.items()}

    def training_batch(self, step: int, number: int = 0) -> Any:
        """Return the batch of one pass of a step, on the device of the run.

        Args:
            step: number of the step.
            number: number of the pass, below `passes_per_step`.
        """
        return self.to_device(self.batch(self.sampler.indices(step, number), self.sampler.generator(step, number)))

    @property
    def has_tiny_inputs(self) -> bool:
        """Whether convolutions are so small that oneDNN takes longer than plain matrix products, on the CPU."""
        return False

    @property
    def network(self) -> nn.Module:
        """The network whose norms are diagnosed: the first one."""
        return next(self.children())

    def eval_batches(self, batch_size: int) -> Iterator[Any] | None:
        """Return test batches as `network` takes them, x or (x, labels), for diagnostics; None if the task has none."""
        return None

    def artifacts(self) -> dict[str, bytes]:
        """Return files to keep with the run, by name; called after each evaluation, while the networks are in eval mode."""
        return {}

    def check(self) -> None:
        """Raise DataError if the networks cannot work on the data; called before runs start, on a task that is then discarded."""
        if type(self).loss is not Task.loss:
            check_metrics(f"{type(self).__name__}.loss", self.loss(self.training_batch(0)), "loss")

    def close(self) -> None:
        """Stop worker processes, if the task has any; called when the training ends, however it ends."""

    # Helpers ------------------------------------------------------------------------------------------------------------------

    def apply_norms(self, network: nn.Module, num_classes: int | None = None) -> nn.Module:
        """Replace the norms of a network by those of the run, `config.norm`.

        Args:
            network: a network with norms.
            num_classes: what "@K" in a spec stands for; None if the task has no classes.
        """
        return apply_norms(network, self.config.norm, self.config.batch_size, num_classes)

    def to_device(self, batch: Any) -> Any:
        """Return a batch with its tensors on the device of the run, copied without waiting."""
        if self.device.type == "cpu":
            return batch
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)


def check_metrics(source: str, metrics: Any, name: str = "") -> None:
    """Check that what a method of a task returned is a dictionary, with a metric if one is named.

    Raises:
        DataError: if it is not.
    """
    if not isinstance(metrics, dict) or (name and name not in metrics):
        got = " ".join(metrics) or "no metric" if isinstance(metrics, dict) else f"an object of type {type(metrics).__name__}"
        raise DataError(f"{source} must return a dictionary {f'with the metric {name!r}' if name else 'of metrics'}; got {got}.")


def merge_options(task: type[Task], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default options of a task with those of a run in their place.

    Raises:
        SpecError: if the task does not have an option, its default is of another type, or it has the name of a field of `Config`.
    """
    defaults = task.default_options
    if clash := {each.name for each in fields(Config)} & set(defaults):
        raise SpecError(
            f"options of {task.__name__} must not have the names of settings of every run; got {' '.join(sorted(clash))}."
        )
    for name, value in options.items():
        if name not in defaults:
            known = f"its options are {' '.join(defaults)}" if defaults else "it has no options"
            raise SpecError(f"{task.__name__} has no option {name!r}; {known}.")
        kind = type(defaults[name])
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise SpecError(f"option {name} of {task.__name__} must be of type {kind.__name__}; got {value!r}.")
    return {**defaults, **options}


def make_optimizer(config: Config, modules: Iterable[nn.Module]) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration for the parameters of modules that require gradients."""
    modules = list(modules)
    parameters = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    return make_optimizer_of_groups(config, parameter_groups(config, parameters, modules))


def make_optimizer_for(config: Config, parameters: Sequence[nn.Parameter], *, fused: bool | None = None) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration for parameters; see `parameter_groups`."""
    return make_optimizer_of_groups(config, parameter_groups(config, parameters), fused=fused)


def parameter_groups(
    config: Config, parameters: Sequence[nn.Parameter], modules: Iterable[nn.Module] = ()
) -> list[dict[str, Any]]:
    """Return parameters as one group of an optimizer, or two with `config.decay_norms=False`.

    The second has no weight decay: parameters of one dimension (biases, and γ and β of norms), and those of the `Norm` layers of
    `modules`, because γ and β per class or domain have two dimensions.
    """
    if config.decay_norms:
        return [{"params": list(parameters)}]
    norms = [layer for module in modules for layer in module.modules() if isinstance(layer, Norm)]
    of_norms = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    is_decayed = [parameter.dim() > 1 and id(parameter) not in of_norms for parameter in parameters]
    pairs = list(zip(parameters, is_decayed, strict=True))
    return [
        {"params": [parameter for parameter, decayed in pairs if decayed]},
        {"params": [parameter for parameter, decayed in pairs if not decayed], "weight_decay": 0.0},
    ]


def make_optimizer_of_groups(config: Config, groups: list[dict[str, Any]], *, fused: bool | None = None) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration for groups of parameters, whose own settings have priority."""
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": FUSED if fused is None else fused}
    if config.optimizer in ("adam", "adamw"):
        return (torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)(groups, **options)
    return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **options)
