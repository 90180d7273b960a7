"""Video classification: clips, views, metrics, norm modes, pretrained weights."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import anynorm
from anynorm.errors import DataError, SpecError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.tasks.video.data import VideoDataset, frame_moments
from anynorm.lab.tasks.video.task import VideoClassification, score_videos
from anynorm.lab.tasks.video.videos import MemoryVideo
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.sampler import Sampler
from tests.helpers import same

QUICK = Config(
    task="video",
    data="moving",
    model="small",
    width=0.5,
    num_train=16,
    num_test=8,
    batch_size=4,
    epochs=2,
    lr=0.05,
    image_size=16,
    num_evals=2,
    options={"num_frames": 4, "norm_modes": True, "recalibration_clips": 8},
)
FIXED = {"data": f"{__name__}:videos_as_long_as_a_clip", "num_test": 4}
"""Settings without random numbers in a batch: one clip per video, one crop per clip."""


def make_videos(count, seed, num_classes=2, length=4, height=16, width=16):
    generator = torch.Generator().manual_seed(seed)
    size = (count, length, 3, height, width)
    return [(frames, k % num_classes) for k, frames in enumerate(torch.randint(0, 256, size, generator=generator).byte())]


def videos_as_long_as_a_clip():
    return make_videos(16, 0), make_videos(4, 1)


def make_video_task(count=5, num_classes=7, length=11, options=None, height=20, width=32, **settings):
    videos = [
        MemoryVideo(frames, label, f"v{k}")
        for k, (frames, label) in enumerate(make_videos(count, 0, num_classes, length, height, width))
    ]
    data = VideoDataset(videos, videos, tuple(map(str, range(num_classes))), *frame_moments(videos))
    values: dict[str, Any] = {
        "num_train": None,
        "num_test": None,
        "batch_size": 2,
        "image_size": 16,
        "options": {"num_frames": 3, **(options or {})},
    }
    task = VideoClassification(replace(QUICK, **values, **settings), data)
    task.sampler = Sampler(task.config, len(videos), 1)
    return task.eval()


# Clips and views --------------------------------------------------------------------------------------------------------------


def test_training_clips_are_places_of_the_videos_as_in_a_naive_loop():
    task = make_video_task(height=16, options={"frame_stride": 2})
    x, labels = task.batch(torch.tensor([3, 1, 3]), torch.Generator().manual_seed(4))
    assert x.shape == (3, 3, 3, 16, 16)
    assert x.is_contiguous()
    assert labels.tolist() == [3, 1, 3]
    for clip, number in zip(x, (3, 1, 3), strict=True):
        frames = task.data.train[number].frames
        found = []
        for start in range(11 - 4):
            for left in range(32 - 15):
                square = frames[[start, start + 2, start + 4], :, :, left : left + 16].float()
                expected = ((square - task.data.mean) / task.data.std).movedim(1, 0)
                found.append(torch.allclose(clip, expected, atol=1e-5))
        assert sum(found) == 1
    assert not torch.equal(x[0], x[2])


def test_flips_and_sizes_are_random():
    task = make_video_task(flip=True, options={"max_side": 24}, height=16, width=16)
    video = task.data.train[0]
    plain = task.clips.random_clip(video, [0.0, 0.0, 0.0, 0.0, 0.9])
    assert torch.equal(plain, video.frames[:3])
    assert torch.equal(task.clips.random_clip(video, [0.0, 0.0, 0.0, 0.0, 0.1]), plain.flip(-1))
    larger = task.clips.random_clip(video, [0.0, 0.99, 0.99, 0.99, 0.9])
    expected = torch.nn.functional.interpolate(video.frames[:3].float(), (24, 24), mode="bilinear", antialias=True)
    assert (larger.float() - expected[..., 8:, 8:]).abs().max() <= 0.5
    assert larger.shape == (3, 3, 16, 16)


@pytest.mark.parametrize("num_crops", [1, 3])
def test_views_are_averaged_as_in_a_naive_loop(num_crops):
    task = make_video_task(options={"num_clips": 4, "num_crops": num_crops, "min_side": 20})
    loss, wrong, wrong_5 = 0.0, 0, 0
    for video in task.data.test:
        probabilities = torch.zeros(7, dtype=torch.float64)
        for start in (0, 3, 6, 8):  # of 9 possible ones
            for left in (0, 6, 12) if num_crops == 3 else (6,):
                clip = video.frames[start : start + 3, :, :, left : left + 20].float()
                x = ((clip - task.data.mean) / task.data.std).movedim(1, 0)[None]
                with torch.no_grad():
                    probabilities += task.model(x)[0].softmax(0).double() / (4 * num_crops)
        order = probabilities.argsort(descending=True).tolist()
        loss -= float(probabilities[video.label].log()) / 5
        wrong += order[0] != video.label
        wrong_5 += video.label not in order[:5]
    with torch.no_grad():
        for batch_size in (1, 2, 5):
            evaluation = task.evaluate_videos(batch_size, Processes())
            for name in ("error", "top-5 error"):
                assert evaluation.metrics[name] == pytest.approx(100 - 20 * sum(evaluation.items[name]))
            assert evaluation.metrics == pytest.approx({"loss": loss, "error": 20 * wrong, "top-5 error": 20 * wrong_5}, rel=1e-5)


def test_top_5_errors_are_counted_by_sorting():
    probabilities = torch.rand(200, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(200) % 8
    _, wrong, wrong_5 = score_videos(probabilities, labels).sum(1).tolist()
    order = probabilities.argsort(1, descending=True).tolist()
    assert wrong == sum(row[0] != label for row, label in zip(order, labels.tolist(), strict=True))
    assert wrong_5 == sum(label not in row[:5] for row, label in zip(order, labels.tolist(), strict=True))
    assert "top-5 error" not in make_video_task(num_classes=5).evaluate_videos(2, Processes()).metrics


@dataclass(frozen=True)
class OneOfTwo(Processes):
    """One of two processes, which keeps its sums for itself."""

    count: int = 2
    number: int = 0

    @property
    def rank(self):
        return self.number

    def sum(self, values):
        return values


def test_two_processes_share_the_test_videos():
    task = make_video_task()
    with torch.no_grad():
        parts = [task.evaluate_videos(2, OneOfTwo(number=number)) for number in (0, 1)]
        whole = task.evaluate_videos(2, Processes()).metrics
    assert whole == pytest.approx({name: parts[0].metrics[name] + parts[1].metrics[name] for name in whole})
    assert not parts[0].items  # a process does not know all videos


def test_batches_for_diagnostics_are_the_middle_of_each_video():
    task = make_video_task()
    batches = list(task.eval_batches(2))
    assert [len(x) for x, _ in batches] == [2, 2, 1]
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2, 3, 4]
    assert batches[0][0].shape == (2, 3, 3, 16, 16)


# Training ---------------------------------------------------------------------------------------------------------------------


def test_the_last_evaluation_has_the_norm_modes():
    points = train(QUICK).trainer.curve.points
    modes = {"test_error, batch statistics", "test_error, recalibrated"}
    assert not modes & points[0].keys()
    assert modes <= points[-1].keys()
    assert not modes & train(replace(QUICK, norm="gn:4", epochs=1)).trainer.curve.points[-1].keys()


def test_an_inflated_network_learns_the_direction_of_motion():
    config = replace(QUICK, num_train=None, num_test=40, batch_size=16, epochs=4, lr=0.05, image_size=24, num_evals=1, options={})
    assert train(config).trainer.curve.points[-1]["test_error"] < 25  # chance: 75


def test_weights_of_a_classification_run_are_inflated(tmp_path):
    classifier: Any = anynorm.convert(build_model("small", DataShape(3, 16, 16, 10), 0.5), "bn").model
    torch.save(classifier.state_dict(), tmp_path / "model.pt")
    task: Any = make_task(replace(QUICK, options={"weights": str(tmp_path / "model.pt")}))
    same(task.model[0][0].weight.sum(2), classifier[0][0].weight)
    with pytest.raises(DataError, match=r"checkpoint not found"):
        make_task(replace(QUICK, options={"weights": "nothing.pt"}))


def test_frozen_norms_do_not_change_and_gradients_are_clipped():
    trainer: Any = make_trainer(
        replace(QUICK, weight_decay=0.0, momentum=0.0, lr=1.0, options={"freeze_norms": True, "clip_grad_norm": 0.01})
    )
    before = {name: value.clone() for name, value in trainer.task.model.state_dict().items()}
    trainer.training_step()
    after = trainer.task.model.state_dict()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in after if after[name].is_floating_point()]).norm()
    assert 0 < moved <= 0.0101
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert all(value.dim() > 1 or name.startswith("4.") for name, value in after.items() if name in changed)


def test_threads_do_not_change_a_batch():
    task: Any = make_task(QUICK)
    one, _ = task.batch(torch.arange(4), torch.Generator().manual_seed(0))
    task.num_workers = 2
    two, _ = task.batch(torch.arange(4), torch.Generator().manual_seed(0))
    assert torch.equal(one, two)
    task.close()


# Errors -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"crop": 2, "mixup": 0.2}, {}, r"the task video has no crop mixup; its augmentation is max_side and flip"),
        ({}, {"num_frames": 0}, r"num_frames must be at least 1; got 0"),
        ({}, {"num_crops": 2}, r"num_crops must be one of 1 3; got 2"),
        ({}, {"min_side": 8}, r"min_side must be at least image_size=16; got 8"),
        ({}, {"max_side": 8}, r"max_side must be at least min_side=16; got 8"),
        ({}, {"dropout": 1.0}, r"dropout must be in \[0, 1\); got 1\.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, options, message):
    with pytest.raises(SpecError, match=message):
        make_task(replace(QUICK, **settings, options=options))


def test_videos_shorter_than_a_clip_are_refused_or_repeated():
    with pytest.raises(DataError, match=r"a clip covers 13 frames; \d+ of 24 videos have fewer: video \d+ \(12\)"):
        make_task(replace(QUICK, options={"num_frames": 13}))
    task: Any = make_task(replace(QUICK, options={"num_frames": 20, "loop": True}))
    x, _ = task.batch(torch.arange(2), torch.Generator().manual_seed(0))
    length = len(task.train_videos[0])
    assert torch.equal(x[0, :, 0], x[0, :, length])
    with pytest.raises(DataError, match=r"unknown data set of videos 'digits'"):
        make_task(replace(QUICK, data="digits"))
