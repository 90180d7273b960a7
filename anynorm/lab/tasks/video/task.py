"""Classification of videos: cross entropy on random clips, error rate in percent over several views of each test video.

Clips and views are those of `batches`. A test video is classified by the mean of the softmax over its views
(Wang et al. 2018). Metrics:

    error           percentage of videos whose most probable class is wrong
    top-5 error     the same for the five most probable classes, if there are more than five
    loss            −log of the probability of the true class

With the option `norm_modes`, the last evaluation also has these metrics with other statistics; see
`anynorm.lab.training.norm_modes`. Batches are x (n, 3, t, h, w) and labels (n,); norms pool over (t, h, w) where they pool
over space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.io.checkpoints import read_state_dict
from anynorm.lab.data.download import find_path
from anynorm.lab.data.shape import DataShape
from anynorm.lab.tasks.video.clip_reader import ClipReader
from anynorm.lab.tasks.video.data import VideoDataset, load_video_cached
from anynorm.lab.tasks.video.networks import load_inflated, make_video_model
from anynorm.lab.tasks.video.options import VideoOptions
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import Batch, choose_samples, count_tests
from anynorm.lab.training.items import ItemValues
from anynorm.lab.training.norm_modes import evaluate_norm_modes
from anynorm.lab.training.task import Metric, Metrics, Task
from anynorm.surgery.freeze import freeze

EVAL_PIXELS = 500 * 64 * 64
"""Maximum number of pixels (of all frames) per forward pass of an evaluation."""
UNUSED = ("crop", "cutout", "mixup", "min_area", "color_jitter")
"""Settings of image tasks that do not apply to videos."""


class VideoClassification(Task[VideoOptions]):
    """Video classification by inflated 3-D networks (I3D, Carreira & Zisserman 2017).

    Args:
        config: the run; `config.data` is a name of `data`, `config.model` a residual network of `anynorm.lab.models`,
            `config.image_size` the side of training crops. With `config.flip`, half of the clips are flipped horizontally.
        data: all videos; None for those of `config.data`.

    Raises:
        DataError: if there are fewer videos than the run takes, or one is shorter than a clip.
        SpecError: if a setting is out of range, or does not apply to videos.
    """

    metric: ClassVar[Metric] = Metric("error", "%")
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:4", "sn"),
        batch_sizes=(2, 16),
        base=Config(
            model="small",
            epochs=3,
            lr=0.05,
            data="moving",
            width=0.5,
            image_size=24,
            num_evals=1,
            options=VideoOptions(norm_modes=True),
        ),
    )

    def __init__(self, config: Config, data: VideoDataset | None = None) -> None:
        super().__init__(config)
        _check_settings(config)
        self.clips = ClipReader(config, self.options)
        data = load_videos(config, self.options) if data is None else data
        chosen = choose_samples(config, len(data.train))
        self.data = data
        self.train_videos = list(data.train) if chosen is None else [data.train[k] for k in chosen.tolist()]
        self.test_videos = data.test[: count_tests(config, len(data.test))]
        self.clips.check_videos([*self.train_videos, *self.test_videos])
        torch.manual_seed(config.seed)
        self.model = self.make_model()

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_videos(config, cls.options_of(config))

    def make_model(self) -> nn.Module:
        """Return the network with the norms of the run, with the weights of a classifier if the run has one."""
        config, options = self.config, self.options
        shape = DataShape(3, config.image_size, config.image_size, self.data.num_classes)
        network = make_video_model(
            config.model,
            shape,
            config.width,
            temporal_blocks=options.temporal_blocks,
            temporal_stride=options.temporal_stride,
            dropout=options.dropout,
        )
        model = self.apply_norms(network)
        if options.weights:
            load_inflated(model, read_state_dict(find_path(options.weights)), options.weights)
        if options.freeze_norms:
            freeze(model)
        return model

    @property
    def num_samples(self) -> int:
        """The number of training videos."""
        return len(self.train_videos)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer, with gradient clipping if `clip_grad_norm` is set."""
        if not self.options.clip_grad_norm:
            return super().configure_optimizers()  # type: ignore[return-value]
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return clipping_optimizer(self.config, parameters, self.options.clip_grad_norm)

    # Training -----------------------------------------------------------------------------------------------------------------

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return a random clip of each video (n, 3, t, h, w), and the labels."""
        numbers = torch.rand(len(indices), 5, generator=generator, dtype=torch.float64).tolist()
        videos = [self.train_videos[k] for k in indices.tolist()]
        clips = self.clips.random_clips(videos, numbers, self.num_workers)
        return self._standardize(clips), torch.tensor([video.label for video in videos])

    def _standardize(self, clips: Iterable[Tensor]) -> Tensor:
        """Return clips (t, 3, h, w) as a standardized batch (n, 3, t, h, w)."""
        return self.data.standardize(torch.stack(list(clips))).transpose(1, 2).contiguous()

    def loss(self, batch: Any) -> Metrics:
        """Return the mean cross entropy and the error in percent."""
        x, labels = batch
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)
        return {"loss": loss, "error": 100 * (logits.detach().argmax(1) != labels).float().mean()}

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the test videos, divided among the processes; after the last step also those by norm mode."""
        evaluation = self.evaluate_videos(self._eval_batch_size, self.processes)
        if self.options.norm_modes and self.is_trained:
            evaluate = partial(self.evaluate_videos, self.config.batch_size, Processes())
            evaluation |= evaluate_norm_modes(self.model, evaluate, self.recalibration_batches())
        return self.keep_items(evaluation)

    def evaluate_videos(self, batch_size: int, processes: Processes) -> Evaluation:
        """Return the metrics of the test videos by the mean softmax over views, with batches of one view of several videos."""
        parts = [torch.zeros(3, 0, dtype=torch.float64)]
        for start in range(processes.rank * batch_size, len(self.test_videos), processes.count * batch_size):
            videos = self.test_videos[start : start + batch_size]
            views = map(self._standardize, self.clips.views(videos, self.num_workers))
            scores = [self.model(self.to_device(x)).float().softmax(1).cpu().double() for x in views]
            parts.append(score_videos(torch.stack(scores).mean(0), torch.tensor([video.label for video in videos])))
        values = torch.cat(parts, 1)
        loss, *errors = (total / len(self.test_videos) for total in processes.sum(values.sum(1).tolist()))
        names = ("error", "top-5 error") if self.data.num_classes > 5 else ("error",)
        metrics = {"loss": loss} | {name: 100 * error for name, error in zip(names, errors, strict=False)}
        items: dict[str, ItemValues] = {name: (wrong == 0).tolist() for name, wrong in zip(names, values[1:], strict=False)}
        return Evaluation(metrics, items if processes.count == 1 else {})

    @property
    def _eval_batch_size(self) -> int:
        return max(1, EVAL_PIXELS // (self.options.num_frames * self.clips.min_side**2))

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield the central crop of the middle clip of each test video, and the labels; fewer per batch if they are large."""
        size = min(batch_size, self._eval_batch_size)
        for start in range(0, len(self.test_videos), size):
            videos = self.test_videos[start : start + size]
            x = self._standardize(map(self.clips.central_clip, videos))
            yield self.to_device((x, torch.tensor([video.label for video in videos])))

    def recalibration_batches(self) -> Iterator[Tensor]:
        """Yield training clips as in training, in batches of the run's size."""
        count, size = min(self.options.recalibration_clips, len(self.train_videos)), self.config.batch_size
        generator = torch.Generator().manual_seed(self.config.seed)
        order = torch.randperm(len(self.train_videos), generator=generator)[:count]
        for indices in torch.split(order, size):
            yield self.to_device(self.batch(indices, generator)[0])

    def close(self) -> None:
        """Stop the threads that decode videos."""
        self.clips.close()


def score_videos(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return −log p(label) of each video, whether its class is wrong, and whether it is not among the five largest, (3, n)."""
    probability = probabilities.gather(1, labels[:, None])
    rank = (probabilities > probability).sum(1)
    losses = -probability.clamp(min=1e-12).log()
    wrong = probabilities.argmax(1) != labels
    return torch.stack([losses[:, 0], wrong.double(), (rank >= 5).double()])


def load_videos(config: Config, options: VideoOptions) -> VideoDataset:
    """Return the videos of a run, loaded once per process."""
    return load_video_cached(config.data, options.sides(config.image_size)[1], config.source_hash, config.skip_unreadable)


def _check_settings(config: Config) -> None:
    """Check that all settings of a run apply to videos.

    Raises:
        SpecError: if one does not.
    """
    if unused := [name for name in UNUSED if getattr(config, name)]:
        raise SpecError(f"the task video has no {' '.join(unused)}; its augmentation is max_side and flip.")
