"""Data named on a command line: folders of images, files of tensors."""

import numpy as np
import pytest
import torch

import anynorm
from anynorm.io.inputs import ImageTransform, read_batches, read_first_batch
from tests.helpers import data, same


def test_a_folder_of_images_is_read_with_its_classes(tmp_path):
    image_files = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for name, color in (("cats/1.png", (255, 0, 0)), ("cats/2.JPG", (255, 0, 0)), ("dogs/1.png", (0, 0, 255))):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        image_files.new("RGB", (20, 12), color).save(path)
    images = ImageTransform(8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    (x, labels), (rest, last) = read_batches(str(tmp_path), 2, images)
    assert x.shape == (2, 3, 8, 8)
    assert labels.tolist() == [0, 0]
    assert last.tolist() == [1]
    same(rest[0, :, 0, 0], torch.tensor([-2.0, -2.0, 2.0]))
    assert read_first_batch(str(tmp_path))[0].shape == (2, 3, 224, 224)
    grey = next(iter(read_batches(str(tmp_path / "cats"), 2, ImageTransform(8, (0.0,), (1.0,)))))
    assert grey.shape == (2, 1, 8, 8)
    (tmp_path / "cats" / "3.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"cannot read .*3\.png as an image"):
        list(read_batches(str(tmp_path)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(anynorm.DataError, match=r"must contain images .*; got none"):
        list(read_batches(str(tmp_path / "empty")))


def test_files_may_hold_labels(tmp_path):
    x, labels = data(5, 3), torch.arange(5)
    torch.save({"x": x, "y": labels}, tmp_path / "both.pt")
    torch.save((x, labels.float()), tmp_path / "floats.pt")
    np.save(tmp_path / "x.npy", x.numpy())
    (first, first_labels), (second, _) = read_batches(str(tmp_path / "both.pt"), 3)
    same(torch.cat([first, second]), x)
    assert first_labels.tolist() == [0, 1, 2]
    for name in ("floats.pt", "x.npy"):
        same(torch.cat(list(read_batches(str(tmp_path / name), 3))), x)
