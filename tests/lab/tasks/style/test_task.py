"""Arbitrary and single style transfer: losses, targets, pictures, and messages for bad input."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import mse_loss

import anynorm
from anynorm.lab.tasks import make_task
from anynorm.lab.tasks.run import make_trainer, train
from anynorm.lab.tasks.style.crops import Crops
from anynorm.lab.tasks.style.pictures import draw_styles
from anynorm.lab.training.config import hash_sources
from anynorm.lab.training.schedules import Inverse
from anynorm.lab.training.store import Store
from tests.helpers import same
from tests.lab.tasks.test_battery import SMOKE

ARBITRARY, SINGLE = SMOKE["style_transfer"], SMOKE["single_style_transfer"]


def with_options(config, **options):
    return replace(config, options={**config.option_values, **options})


def make(config) -> Any:
    """Return the task of a run in eval mode."""
    return make_task(config).eval()


def make_with_styles(config) -> Any:
    """Return the task of a run in eval mode, with test styles that are not the test contents."""
    task = make(config)
    task.styles.test = task.styles.test.select(range(10, 14))
    return task


def gradients(task, batch):
    """Return the gradient of the content loss for each parameter."""
    metrics = task.loss(batch)
    names, parameters = zip(*task.model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(metrics["content_loss"], parameters, allow_unused=True), strict=True))


def test_an_attached_target_changes_the_gradient_of_the_norm_and_nothing_else():
    trainers = [make_trainer(with_options(ARBITRARY, detach_target=detached)) for detached in (True, False)]
    batch = trainers[0].task.training_batch(0)
    losses = [trainer.task.loss(batch)["loss"] for trainer in trainers]
    assert losses[0] == losses[1]
    detached, attached = (gradients(trainer.task, batch) for trainer in trainers)
    for name in detached:
        assert torch.equal(detached[name], attached[name]) == name.startswith("decoder"), name


def test_with_adain_the_published_content_loss_is_the_one_against_adains_target():
    with torch.no_grad():
        metrics = make_with_styles(replace(ARBITRARY, norm="adain")).evaluate()
    same(torch.tensor(metrics["content_loss"]), torch.tensor(metrics["adain_content_loss"]))
    same(torch.tensor(metrics["loss"]), torch.tensor(metrics["content_loss"] + 10 * metrics["style_loss"]))


def test_the_metrics_of_an_evaluation_are_those_of_the_definition():
    task = make_with_styles(ARBITRARY)
    with torch.no_grad():
        task.model.norm.weight.fill_(1.5)
        metrics = task.evaluate()
        content, style = (crops.test_crops(range(4)) for crops in (task.contents, task.styles))
        f = lambda images: task.encoder(images)["relu4_1"]  # noqa: E731
        image = task.model.decoder(task.model.norm(f(content), f(style)))
        hat = [
            (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
            for x in (f(image), f(content))
        ]
        same(torch.tensor(metrics["normalized_content_loss"]), mse_loss(*hat), rtol=1e-4, atol=1e-6)
        target = f(style).std((2, 3), keepdim=True, unbiased=False) * hat[1] + f(style).mean((2, 3), keepdim=True)
        same(
            torch.tensor(metrics["adain_content_loss"]), mse_loss(f(image), target), rtol=1e-3, atol=1e-5
        )  # ε in the std of the style
        assert metrics["adain_content_loss"] != pytest.approx(metrics["content_loss"])


def test_an_evaluation_has_every_content_in_several_styles():
    config = with_options(ARBITRARY, styles_per_content=2)
    task = make_with_styles(config)
    with torch.no_grad():
        metrics = task.evaluate()
        single = make_with_styles(ARBITRARY)
        first = single.evaluate()
        single.styles.test = single.styles.test.select([1, 2, 3, 0])  # content i with style i + 1
        second = single.evaluate()
    for name, value in metrics.items():
        assert value == pytest.approx((first[name] + second[name]) / 2, rel=1e-4), name
        assert len(task.items[name]) == 4  # contents
        assert np.mean(task.items[name]) == pytest.approx(value), name


def test_the_items_of_a_single_style_are_the_losses_of_each_image():
    task = make(SINGLE)
    with torch.no_grad():
        metrics = task.evaluate()
        each = [task.loss(task.contents.test_crops(range(k, k + 1))) for k in range(4)]
    for name, value in metrics.items():
        assert np.mean(task.items[name]) == pytest.approx(value), name
        assert task.items[name] == pytest.approx([float(losses[name]) for losses in each], rel=1e-4), name


@pytest.mark.parametrize("config", [ARBITRARY, SINGLE], ids=["arbitrary", "single"])
def test_training_lowers_both_losses_on_held_out_images(config):
    trainer, failure = train(replace(config, epochs=12))
    assert not failure
    first, last = trainer.curve.points[0], trainer.curve.points[-1]
    assert last["test_loss"] < first["test_loss"]


def test_styles_of_a_step_are_random_and_depend_on_the_seed_and_the_step_alone():
    task, again = (make_trainer(ARBITRARY).task for _ in range(2))
    batches = [task.training_batch(step) for step in (0, 1)]
    for step in (1, 0):  # in another order
        for actual, expected in zip(again.training_batch(step), batches[step], strict=True):
            assert torch.equal(actual, expected)
    chosen = [chosen_styles(config, step) for config, step in ((ARBITRARY, 0), (ARBITRARY, 1), (replace(ARBITRARY, seed=1), 0))]
    assert len(set(map(tuple, chosen))) == 3


def chosen_styles(config, step) -> Any:
    task: Any = make_trainer(config).task
    return task.styles.choose(task.sampler, step, 0).tolist()


def test_worker_processes_decode_the_same_crops(monkeypatch):
    monkeypatch.setattr("anynorm.lab.tasks.style.crops.MIN_IMAGES_FOR_WORKERS", 1)
    task, streamed = (make_trainer(ARBITRARY).task for _ in range(2))
    streamed.num_workers = 2
    try:
        for step in (0, 1):
            for actual, expected in zip(streamed.training_batch(step), task.training_batch(step), strict=True):
                assert torch.equal(actual, expected)
    finally:
        streamed.close()


@pytest.mark.parametrize(("config", "size"), [(ARBITRARY, (5 * 17 - 1, 5 * 17 - 1)), (SINGLE, (2 * 17 - 1, 4 * 17 - 1))])
def test_a_run_keeps_a_picture_of_held_out_images(config, size):
    task = make_trainer(config).task.eval()
    with torch.no_grad():
        files = task.artifacts()
    with Image.open(BytesIO(files["stylized.png"])) as image:
        assert image.size == size[::-1]


def test_contents_and_styles_of_any_size_are_stylized_at_the_size_of_the_content():
    arbitrary, single = map(make, (ARBITRARY, SINGLE))
    content, style = torch.rand(1, 3, 21, 34), torch.rand(1, 3, 40, 17)
    with torch.no_grad():
        assert arbitrary.stylize(content, style).shape == content.shape
        same(arbitrary.stylize(content, style, 0.0), arbitrary.model.decoder(arbitrary.encode(content))[..., :21, :34])
        assert single.stylize(content).shape == content.shape
        assert torch.equal(single.stylize(content, alpha=0.0), content)


def test_a_picture_of_images_of_different_sizes_is_refused():
    with pytest.raises(anynorm.DataError, match=r"contents and styles of a picture must have one size; got 16 × 16 and 24 × 20"):
        draw_styles(make(ARBITRARY).stylize, torch.rand(1, 3, 16, 16), torch.rand(1, 3, 24, 20))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(ARBITRARY, norm="bn"),
            r"style_transfer needs a norm that takes a style; got bn\. Usable: adain, .* gn:32\.style",
        ),
        (with_options(ARBITRARY, styles=""), r"needs style images: set the option styles to folder:PATH or npz:PATH; got ''"),
        (with_options(ARBITRARY, styles="folder:none"), r"folder:none must be an existing folder with images"),
        (replace(ARBITRARY, data="folder:none"), r"folder:none must be an existing folder with images"),
        (with_options(ARBITRARY, resize=8), r"resize must be at least image_size=16; got 8"),
        (with_options(ARBITRARY, style_layers="relu9"), r"style_layers must be layers of the encoder, relu1_1 .*; got 'relu9'"),
        (with_options(ARBITRARY, encoder="none.pth"), r"encoder must be .* or an existing file; got 'none\.pth'"),
        (replace(ARBITRARY, num_test=10_000), r"num_test must be between 1 and the .* images"),
        (with_options(SINGLE, style_image=""), r"needs a style: set the option style_image to the path of an image; got ''"),
        (with_options(SINGLE, style_image="none.jpg"), r"image not found: none\.jpg"),
        (with_options(SINGLE, content_layer="relu9_9"), r"the layer must be one of those in the weights of the encoder"),
    ],
)
def test_what_is_wrong_with_a_run_is_said_before_it_starts(config, message):
    task = anynorm.lab.tasks.task_class(config.task)
    with pytest.raises(anynorm.AnynormError, match=message):
        task.prepare(config)


def test_images_that_are_too_small_for_the_encoder_are_refused():
    with pytest.raises(anynorm.ShapeError, match=r"images must have at least 9 × 9 pixels for this encoder; got 8 × 8"):
        train(replace(ARBITRARY, image_size=8))


def test_an_unreadable_image_of_a_folder_is_named(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"{name}.png").write_text("not an image")
    task = make_trainer(replace(ARBITRARY, data=f"folder:{tmp_path}", num_train=4, num_test=1)).task
    with pytest.raises(anynorm.ReadError, match=r"cannot decode .*/[a-h]\.png"):
        task.training_batch(0)


def test_a_change_of_the_style_folder_makes_another_run(tmp_path):
    config = with_options(ARBITRARY, styles=f"folder:{tmp_path}")
    before = hash_sources(config)
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    assert before != hash_sources(config)


def test_the_inverse_schedule_is_that_of_adain():
    for step in (0, 1000, 160_000):
        assert Inverse(8.0).factor(step / 160_000) == pytest.approx(1 / (1 + 5e-5 * step))


def test_test_crops_beyond_the_last_start_again():
    crops = Crops("digits", ARBITRARY, 24)
    assert torch.equal(crops.test_crops(range(4, 6)), crops.test_crops(range(2)))


def test_norms_are_compared_with_the_settings_of_the_task(tmp_path):
    settings = {"data": "digits", "num_train": 8, "num_test": 2, "image_size": 16}
    settings |= {"styles": "digits", "encoder": "random", "resize": 24}
    table = anynorm.compare(["adain", "saadain"], [4], seeds=1, task="style_transfer", epochs=1, config=settings, runs=tmp_path)
    assert [row["norm"] for row in table] == ["adain", "saadain"]
    config = Store(tmp_path).config(Store(tmp_path).runs()[0].id)
    assert (config.optimizer, config.lr, config.weight_decay) == ("adam", 1e-3, 0.0)
