"""The base class of tasks, which define what is trained; `anynorm.lab.training.trainer` defines how.

A `Task` has networks, data, a loss, optimizers and metrics. `anynorm.lab.training.trainer.Trainer` has the training loop, seeds,
device, precision, processes, moving averages, checkpoints and curves.

    training_step(trainer) = for each micro-batch: trainer.backward(loss(training_batch(…)));  then trainer.update(optimizer)

A task with one loss defines `num_samples`, `batch`, `loss` and `evaluate`. A task with several networks or optimizers (a GAN, a
bilevel search) also overrides `training_step` and `configure_optimizers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from typing_extensions import TypeVar

from anynorm.errors import DataError, SpecError
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import scalar
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.items import ItemValues
from anynorm.lab.training.norm_layout import Layout
from anynorm.lab.training.options import Options
from anynorm.lab.training.sampler import Sampler
from anynorm.layers.norm import Norm

Metrics = dict[str, Tensor]
Optimizers = dict[str, torch.optim.Optimizer]
TaskOptions_co = TypeVar("TaskOptions_co", bound=Options, default=Options, covariant=True)
FUSED = True
"""Default of the argument `fused` of torch's optimizers. Read in each call: tests set it to False for devices without support."""


class Metric(NamedTuple):
    """The metric by which norms are compared, one of the metrics that `Task.evaluate` returns.

    Args:
        name: name of the metric, a key of the dictionary that `Task.evaluate` returns.
        unit: unit of the metric, such as "%".
        higher_is_better: whether a larger value is better.
    """

    name: str = "loss"
    unit: str = ""
    higher_is_better: bool = False

    @property
    def label(self) -> str:
        """Name and unit, for the header of a column."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def format_spec(self) -> str:
        """Format specification of a value: one decimal for percent, four significant digits for other units."""
        return ".1f" if self.unit == "%" else ".4g"

    @property
    def result_format(self) -> str:
        """Format specification of a `anynorm.lab.training.result.Result` with its 95 % interval: one decimal for percent."""
        return ".1f [.1f]" if self.unit == "%" else ".4g [.4g]"

    def format(self, value: float) -> str:
        """Format a value with its unit.

        >>> Metric("error", "%").format(2.25)
        '2.2 %'
        """
        return f"{value:{self.format_spec}} {self.unit}".rstrip()

    def describe(self, value: float, prefix: str = "") -> str:
        """Format a value with its unit and the name of the metric.

        >>> Metric("error", "%").describe(2.25, "test ")
        '2.2 % test error'
        >>> Metric("distance", "mm").describe(0.5)
        'distance 0.5 mm'
        """
        number, name = self.format(value), prefix + self.name
        return f"{number} {name}" if self.unit == "%" else f"{name} {number}"


class TrainingLoop(Protocol):
    """The interface of the trainer that `Task.training_step` uses."""

    @property
    def step(self) -> int:
        """Number of finished steps, which is the index of the current step."""

    @property
    def progress(self) -> float:
        """The finished fraction of the training, in [0, 1)."""

    @property
    def averages(self) -> Mapping[str, nn.Module]:
        """Moving averages of the networks by name; empty if the run has none. A task that assigns parameters sets both."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager for forward passes that sets the precision of the run."""

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of a loss and accumulate them; with 16-mixed precision, the loss is scaled first."""

    def update(self, name: str = "main") -> None:
        """Average the gradients of an optimizer over the processes, update its parameters, and reset the gradients."""


class Task(nn.Module, Generic[TaskOptions_co]):
    """Base class of tasks.

    Modules that a subclass assigns in `__init__` are its networks. Parameters and buffers of the task itself are saved in
    checkpoints too. torch's global generator is seeded with `config.seed` before `__init__` is called.

    Args:
        config: the configuration of the run.

    Attributes:
        metric: the metric by which runs are compared; override `metric_for` if it depends on the run.
        options_class: the dataclass of the options, the argument of the base class: `class Detection(Task[DetectionOptions])`.
        comparison_defaults: default norms, batch sizes and settings of `anynorm.compare` for this task.
        options: the options of this run, the settings of the task besides the fields of `Config`.
        sampler: the sampler of the training samples; set by the trainer.
        device: the device of the networks and batches; set by the trainer.
        num_workers: number of processes that may decode data; set by the trainer.
        processes: the processes that train the run; set by the trainer.
        is_trained: whether all steps are finished, so that the next evaluation is the last one; set by the trainer after each
            step. True for a task that is not in training, such as one returned by `anynorm.lab.tasks.run.load_run`.
        items: one value per test sample of the last evaluation, by the name of a metric. Bools say which samples were classified
            correctly. Numbers have the metric as their mean, or are its jackknife pseudo-values; see
            `anynorm.lab.training.items`. Empty if the task does not say so, or several processes evaluate.
        has_validation: whether the task can hold out training images, see `Config.num_validation`.
        version: version of the task: increase it if the metrics of a run get another meaning.

    Raises:
        SpecError: if `config.options` has an unknown option, or a value of the wrong type.
    """

    metric: ClassVar[Metric] = Metric()
    options_class: ClassVar[type[Options]] = Options
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults()
    version: ClassVar[int] = 1
    has_validation: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                kind = argument.__bound__ if isinstance(argument, TypeVar) else argument
                if isinstance(kind, type) and issubclass(kind, Options):
                    cls.options_class = kind
        if clash := {each.name for each in fields(Config)} & set(cls.options_class.defaults()):
            raise SpecError(
                f"options of {cls.__name__} must not have the names of settings of every run; got {' '.join(sorted(clash))}."
            )

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.num_validation and not self.has_validation:
            raise SpecError(f"num_validation must be 0 for {type(self).__name__}, which cannot hold out training samples.")
        self.config = config
        self.options: TaskOptions_co = self.options_of(config)
        self.device, self.num_workers = torch.device("cpu"), 0
        self.processes = Processes()
        self.is_trained = True
        self.items: dict[str, ItemValues] = {}
        self.sampler: Sampler

    @classmethod
    def options_of(cls, config: Config) -> TaskOptions_co:
        """Return the options of a run.

        Raises:
            SpecError: if the task does not have an option of the run, or a value is not valid.
        """
        return cast("TaskOptions_co", cls.options_class.from_values(config.option_values, cls.__name__))

    # Methods that a subclass defines ------------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """Number of training samples per epoch."""
        raise self._undefined("num_samples")

    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """Return a batch of training samples, of any type; all random numbers must be drawn from the generator.

        Args:
            indices: indices of the samples, below `num_samples`, shape (batch_size,).
            generator: a CPU generator whose seed depends only on the seed of the run and the index of the micro-batch.
        """
        raise self._undefined("batch")

    def loss(self, batch: Any) -> Metrics:
        """Return metrics of a batch as scalar tensors, each a mean over the samples; the metric "loss" is minimized."""
        raise self._undefined("loss")

    def evaluate(self) -> dict[str, float]:
        """Return metrics of the networks on test data; called in eval mode with gradients disabled."""
        raise self._undefined("evaluate")

    def _undefined(self, name: str) -> DataError:
        return DataError(f"{type(self).__name__} must define {name}; see anynorm.Task.")

    # Methods that a subclass may override -------------------------------------------------------------------------------------

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the metric by which a run is compared; override it if the metric depends on the settings of the run."""
        return cls.metric

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load or download the data of a run. An error here is raised and stops a sweep; it is not recorded as a failed run."""

    @property
    def micro_batches_per_step(self) -> int:
        """Number of batches per step and process."""
        return self.config.grad_accum_steps

    def configure_optimizers(self) -> torch.optim.Optimizer | Optimizers:
        """Return the optimizer, or a dictionary of optimizers by name.

        Learning rates follow `config.schedule`, except in parameter groups with `"constant_lr": True`.
        """
        return make_optimizer(self.config, [self])

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Update the parameters once and return the metrics of the step."""
        count = self.micro_batches_per_step
        total: Metrics = {}
        for micro_batch in range(count):
            with trainer.autocast():
                metrics = self.loss(self.training_batch(trainer.step, micro_batch))
            check_metrics(f"{type(self).__name__}.loss", metrics, "loss")
            trainer.backward(metrics["loss"] if count == 1 else metrics["loss"] / count)
            for name, value in metrics.items():
                total[name] = total[name] + scalar(name, value) if name in total else scalar(name, value)
        trainer.update()
        return total if count == 1 else {name: value / count for name, value in total.items()}

    def training_batch(self, step: int, micro_batch: int = 0) -> Any:
        """Return one micro-batch of a step, on the device of the run.

        Args:
            step: number of the step.
            micro_batch: index of the micro-batch within the step, below `micro_batches_per_step`.
        """
        return self.to_device(self.batch(self.sampler.indices(step, micro_batch), self.sampler.generator(step, micro_batch)))

    @property
    def has_tiny_inputs(self) -> bool:
        """Whether inputs are so small that convolutions on the CPU are faster without oneDNN."""
        return False

    @property
    def network(self) -> nn.Module:
        """The network whose norms are measured after training; by default the first network of the task."""
        return next(self.children())

    def eval_batches(self, batch_size: int) -> Iterator[Any] | None:
        """Return test batches for diagnostics, inputs of `network` or pairs (inputs, labels); None if the task has none."""
        return None

    def artifacts(self) -> dict[str, bytes]:
        """Return the contents of files to store with the run, by name; called after each evaluation, in eval mode."""
        return {}

    def check(self) -> None:
        """Check that the networks can process the data; called before the first run, on a task that is discarded afterwards.

        Raises:
            DataError: if the networks cannot process the data.
        """
        if type(self).loss is not Task.loss:
            check_metrics(f"{type(self).__name__}.loss", self.loss(self.training_batch(0)), "loss")

    def close(self) -> None:
        """Stop the worker processes of the task, if any; called when training ends, also after an error."""

    # Helpers ------------------------------------------------------------------------------------------------------------------

    def apply_norms(self, network: nn.Module, num_classes: int | None = None) -> nn.Module:
        """Replace the norms of a network by the norms of the run, `config.norm`.

        Args:
            network: a network with norms.
            num_classes: the number that replaces "K" in "@K" of a spec; None if the task has no classes.
        """
        return Layout.parse(self.config.norm, self.config.batch_size, num_classes).apply(network)

    def keep_items(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the metrics of an evaluation, and set `items` to its items if it is the last one."""
        self.items = evaluation.items if self.is_trained else {}
        return evaluation.metrics

    def to_device(self, batch: Any) -> Any:
        """Return a batch with all tensors on the device of the run; copies are asynchronous (`non_blocking=True`)."""
        if self.device.type == "cpu":
            return batch
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)


def check_metrics(source: str, metrics: Any, name: str = "") -> None:
    """Check that a method of a task has returned a dictionary of metrics.

    Args:
        source: name of the method, for the error message.
        metrics: the returned value.
        name: a metric that the dictionary must have; "" for none.

    Raises:
        DataError: if `metrics` is not a dictionary or lacks the metric.
    """
    if not isinstance(metrics, dict) or (name and name not in metrics):
        got = " ".join(metrics) or "no metric" if isinstance(metrics, dict) else f"an object of type {type(metrics).__name__}"
        raise DataError(f"{source} must return a dictionary {f'with the metric {name!r}' if name else 'of metrics'}; got {got}.")


def make_optimizer(config: Config, modules: Iterable[nn.Module]) -> torch.optim.Optimizer:
    """Make the optimizer of a configuration for all parameters of modules that require gradients."""
    modules = list(modules)
    parameters = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    return make_optimizer_for_groups(config, parameter_groups(config, parameters, modules))


def make_optimizer_for_parameters(
    config: Config, parameters: Sequence[nn.Parameter], *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer of a configuration for a list of parameters, grouped by `parameter_groups`."""
    return make_optimizer_for_groups(config, parameter_groups(config, parameters), fused=fused)


def parameter_groups(
    config: Config, parameters: Sequence[nn.Parameter], modules: Iterable[nn.Module] = ()
) -> list[dict[str, Any]]:
    """Return parameters as one parameter group of an optimizer, or as two groups if `config.decay_norms` is False.

    The second group has no weight decay. It has all one-dimensional parameters (biases, and γ and β of norms) and all parameters
    of `Norm` layers in `modules`, because γ and β per class or domain have two dimensions.
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


def make_optimizer_for_groups(
    config: Config, groups: list[dict[str, Any]], *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Make the optimizer of a configuration for parameter groups; settings of a group override the configuration."""
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": FUSED if fused is None else fused}
    if config.optimizer in ("adam", "adamw"):
        return (torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)(groups, **options)
    return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **options)
