"""Tiles: the output for an image computed in parts is that for the whole image."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.tile_passes import TilePasses
from tests.helpers import data, same
from tests.surgery.networks import BatchNormAct2d, relative

IMAGE = data(1, 3, 64, 48) + torch.linspace(-2, 2, 64)[:, None]  # its parts have different statistics


class UNet(nn.Module):
    """Two levels with a total stride of 4, a shortcut for each, and five norms."""

    def __init__(self, norm):
        super().__init__()
        self.inner, self.outer = self.block(3, 8, norm), self.block(16, 8, norm)
        self.down1, self.down2 = self.block(8, 8, norm, stride=2), self.block(8, 8, norm, stride=2)
        self.up = self.block(16, 8, norm)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(inputs, width, norm, stride=1):
        return nn.Sequential(nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width), nn.ReLU())

    def forward(self, x):
        x = self.inner(x)
        half = self.down1(x)
        quarter = self.down2(half)
        half = self.up(torch.cat([half, nn.functional.interpolate(quarter, scale_factor=2)], 1))
        return self.head(self.outer(torch.cat([x, nn.functional.interpolate(half, scale_factor=2, mode="bilinear")], 1)))


HALO = 16  # covers the receptive field of UNet: 1 + 1 + 2 + 2 + 4 / 2 + 1 pixels


def unet(norm) -> Any:
    """A U-Net in eval mode with random γ, β and running statistics."""
    torch.manual_seed(0)
    model = UNet(norm)
    for module in model.modules():
        if isinstance(getattr(module, "weight", None), nn.Parameter) and module.weight.dim() == 1:  # type: ignore[operator]
            nn.init.normal_(module.weight, 1, 0.3)  # type: ignore[arg-type]
            nn.init.normal_(module.bias, 0, 0.3)  # type: ignore[arg-type]
    model(data(4, 3, 16, 16, seed=5))
    return model.eval()


NORMS = {
    **{spec: anynorm.layer(spec) for spec in ("gn:2", "in", "ln", "sn", "in/bn", "gn:4/ln", "ibn", "ssn", "bn", "pn", "dyt")},
    "bn without running statistics": anynorm.layer("bn", track_running_stats=False),
    "nn.GroupNorm": lambda c: nn.GroupNorm(2, c),
    "nn.InstanceNorm2d": lambda c: nn.InstanceNorm2d(c, affine=True),
    "nn.BatchNorm2d": nn.BatchNorm2d,
}


@torch.no_grad()
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_the_output_is_that_of_the_whole_image(norm):
    model = unet(norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model(IMAGE)
    same(anynorm.tiled(model, IMAGE, tile=(16, 32), halo=HALO), expected, rtol=1e-5, atol=1e-5)
    same(model.state_dict(), before, rtol=0, atol=0)
    same(model(IMAGE), expected, rtol=0, atol=0)


@torch.no_grad()
def test_without_shared_statistics_or_halo_the_output_differs():
    model = unet(anynorm.layer("gn:2"))
    expected = model(IMAGE)
    assert relative(torch.cat([model(part) for part in IMAGE.split(16, 2)], 2), expected) > 0.1
    assert relative(anynorm.tiled(model, IMAGE, tile=16, halo=0), expected) > 0.01
    assert relative(anynorm.tiled(model, IMAGE, tile=16, halo=4), expected) > 1e-4
    assert relative(anynorm.tiled(model, IMAGE, tile=16, halo=HALO), expected) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize(("tile", "halo"), [(40, 16), ((64, 4), 12), (8, (12, 20)), (20, 40)])
def test_tiles_of_any_size_that_fits_the_strides_give_the_same(tile, halo):
    model = unet(anynorm.layer("in")).double()
    image = IMAGE.double().expand(2, -1, -1, -1) * torch.tensor([1.0, 3.0])[:, None, None, None]
    same(anynorm.tiled(model, image, tile=tile, halo=halo), model(image))


@torch.no_grad()
@pytest.mark.parametrize("dims", [1, 3])
def test_signals_and_volumes(dims):
    conv = {1: nn.Conv1d, 3: nn.Conv3d}[dims]
    torch.manual_seed(0)
    model = nn.Sequential(conv(2, 4, 3, 2, 1), anynorm.make("gn:2", 4), nn.ReLU(), conv(4, 3, 3, padding=1)).eval()
    image = data(2, 2, *(16, 12, 8)[:dims])
    same(anynorm.tiled(model, image, tile=8, halo=4), model(image), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_outputs_larger_than_the_image():
    torch.manual_seed(0)
    norm = anynorm.make("in", 12)
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), norm, nn.PixelShuffle(2), nn.Conv2d(3, 3, 3, padding=1)).eval()
    expected = model(IMAGE)
    assert expected.shape == (1, 3, 128, 96)
    same(anynorm.tiled(model, IMAGE, tile=16, halo=4), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_image_of_one_tile_runs_once_whatever_its_size():
    model = unet(anynorm.layer("gn:2"))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    image = IMAGE[..., :46]  # no multiple of the stride
    same(anynorm.tiled(nn.Sequential(model.inner, model.down1).eval(), image, tile=64), model.down1(model.inner(image)))
    same(anynorm.tiled(model, IMAGE, tile=64), model(IMAGE))
    assert len(calls) == 2


@torch.no_grad()
def test_each_pass_ends_a_tile_at_the_norm_whose_statistics_it_collects():
    model = unet(anynorm.layer("in"))
    calls = dict.fromkeys(("inner", "down1", "down2", "up", "outer"), 0)
    for name in calls:
        getattr(model, name)[0].register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    anynorm.tiled(model, IMAGE, tile=32, halo=HALO)
    assert calls == {"inner": 4 * 6, "down1": 4 * 5, "down2": 4 * 4, "up": 4 * 3, "outer": 4 * 2}


@torch.no_grad()
def test_conditions_activations_residuals_and_shared_norms():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 1)
            self.shared, self.per_class = anynorm.make("gn:2", 8), anynorm.make("in.cc@3", 8)
            self.style = anynorm.make("adain", 8)
            self.last = anynorm.make("ln", 8, activation="silu")

        def forward(self, x):
            x = self.shared(self.conv(x))
            y = self.shared(self.per_class(x).relu())
            y = self.style(y, (torch.ones(1, 8), torch.full((1, 8), 2.0)))
            return self.last(y, residual=x)

    torch.manual_seed(0)
    model = Network().eval()
    nn.init.normal_(model.per_class.class_bias)
    with anynorm.condition(model, 2):
        expected = model(IMAGE)
        same(anynorm.tiled(model, IMAGE, tile=16, halo=0), expected, rtol=1e-5, atol=1e-5)
    with anynorm.tiles(model) as passes, anynorm.condition(model, 2):
        for _ in passes:
            parts = [model(part) for part in IMAGE.split(8, 3)]
    same(torch.cat(parts, 3), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_fused_models_and_norms_with_an_activation_inside():
    class InstanceNormAct(BatchNormAct2d):
        pass

    torch.manual_seed(0)
    model = unet(anynorm.layer("gn:2"))
    expected = model(IMAGE)
    anynorm.fuse(model, IMAGE)
    same(anynorm.tiled(model, IMAGE, tile=32, halo=HALO), expected, rtol=1e-5, atol=1e-5)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), InstanceNormAct(8))
    model[1].track_running_stats, model[1].running_mean, model[1].running_var = False, None, None  # type: ignore[assignment]
    model.eval()
    expected = model(IMAGE)
    assert bool((expected >= 0).all())
    same(anynorm.tiled(model, IMAGE, tile=32, halo=0), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_loops_of_the_user_and_several_images():
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 8, 1), anynorm.make("ln", 8)).eval()
    modules, images = list(model.modules()), (IMAGE, IMAGE * 3 + 1)
    expected = [model(image) for image in images]
    with anynorm.tiles(model) as passes:
        for image, whole in zip(images, expected, strict=True):
            known = []
            for count in passes:
                outputs = [model(part) for part in image.split(16, 2)]
                known.append(count)
            assert known == [0, 1, 2]
            same(torch.cat(outputs, 2), whole, rtol=1e-5, atol=1e-5)
    check_unchanged(model, modules)


def peak_bytes(run) -> int:
    """The largest number of bytes that are allocated at one time while a function runs, beyond those before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@torch.no_grad()
def test_the_memory_is_that_of_one_tile():
    model = unet(anynorm.layer("gn:2"))
    image = data(1, 3, 256, 256)
    whole = peak_bytes(lambda: model(image))
    output = 4 * 2 * 256 * 256
    assert whole > 2 * 4 * 8 * 256 * 256
    assert peak_bytes(lambda: anynorm.tiled(model, image, tile=64, halo=HALO)) < 0.35 * whole + output


def test_no_gradients_are_recorded():
    model = unet(anynorm.layer("in"))
    assert not anynorm.tiled(model, IMAGE, tile=32, halo=HALO).requires_grad
    assert not anynorm.tiled(model, IMAGE, tile=64).requires_grad


@torch.no_grad()
def test_forward_selects_an_output_and_compiled_models_run_eagerly():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.unet = unet(anynorm.layer("in"))

        def forward(self, x):
            return {"out": self.unet(x)}

    model = Two().eval()
    expected = model(IMAGE)["out"]
    result = anynorm.tiled(model, IMAGE, tile=32, halo=HALO, forward=lambda model, x: model(x)["out"])
    same(result, expected, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(model.unet, backend="eager")
    compiled(IMAGE)
    same(anynorm.tiled(compiled, IMAGE, tile=32, halo=HALO), expected, rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]


# Errors


def check_unchanged(model, modules):
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert not any("_compute_output" in vars(module) for module in model.modules())
    assert not model._forward_pre_hooks


def test_a_failing_model_is_left_unchanged():
    model = unet(lambda c: nn.GroupNorm(2, c))
    model.head = nn.Conv2d(9, 2, 1).eval()
    modules = list(model.modules())
    with pytest.raises(RuntimeError):
        anynorm.tiled(model, IMAGE, tile=32, halo=HALO)
    check_unchanged(model, modules)
    with pytest.raises(RuntimeError), anynorm.tiles(model) as passes:
        run(model, passes, lambda count: [IMAGE])
    check_unchanged(model, modules)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bgn:16", r"'inner\.1' \(bgn:16\) cannot be used with tiles: its statistics differ between parts of the positions\."),
        (
            "in+pn",
            r"\(in\+pn\) .*: it mixes statistics of each position with statistics of the image\. anynorm\.convert replaces",
        ),
        ("gw:2", r"\(gw:2\) .*: it needs more of the image than means and variances"),
        ("modenorm:2", r"\(modenorm:2\) .*: it needs more of the image than means and variances"),
        ("ilmin", r"\(ilmin\) .*: it needs more of the image than means and variances"),
    ],
)
def test_norms_whose_statistics_cannot_be_pooled_over_tiles_are_refused(spec, message):
    model = UNet(anynorm.layer(spec)).eval()
    with pytest.raises(anynorm.SurgeryError, match=message):
        anynorm.tiled(model, IMAGE, tile=32)


def test_other_models_that_are_refused():
    model = unet(anynorm.layer("in"))
    model.down2[1].train()
    with pytest.raises(anynorm.SurgeryError, match=r"call model\.eval\(\) first; got 'down2\.1' in train mode"):
        anynorm.tiled(model, IMAGE, tile=32)
    with pytest.raises(anynorm.SurgeryError, match=r"call model\.eval\(\) first; got the model in train mode"):
        anynorm.tiled(model.train(), IMAGE, tile=64)
    with pytest.raises(
        anynorm.SurgeryError, match=r"The model itself is a GroupNorm: use nn\.Sequential\(model\)\.eval\(\), or make it"
    ):
        anynorm.tiled(nn.GroupNorm(1, 3).eval(), IMAGE, tile=32)
    same(anynorm.tiled(anynorm.make("in", 3).eval(), IMAGE, tile=32, halo=0), nn.InstanceNorm2d(3)(IMAGE))


STRIDES = "tile, halo and the size of the image must be multiples of the total stride"


@pytest.mark.parametrize(
    ("size", "tile", "halo", "message"),
    [
        (
            64,
            31,
            0,
            r"Input of 'down1\.1': the 31 pixels from 0 to 31, of which 0 to 31 are the tile .* have 16 positions\. " + STRIDES,
        ),
        (64, 32, 7, r"Input of 'down1\.1': the 39 pixels from 0 to 39, .* " + STRIDES),
        (64, 32, 6, r"Input of 'down2\.1': the 38 pixels from 0 to 38, .* have 10 positions"),
        (62, 32, 16, r"Input of 'down2\.1': the 46 pixels from 16 to 62, of which 32 to 62 are the tile .* have 12 positions"),
    ],
)
def test_sizes_that_do_not_fit_the_strides_raise(size, tile, halo, message):
    model = unet(anynorm.layer("in"))
    with pytest.raises(anynorm.SurgeryError, match=message):
        anynorm.tiled(model, IMAGE[:, :, :size], tile=(tile, 48), halo=(halo, 0))


def test_outputs_that_cannot_be_put_together_raise():
    unpadded = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(
        anynorm.SurgeryError, match=rf"Output of the model: the 18 pixels from 0 to 18.*have 16 positions\. {STRIDES}"
    ):
        anynorm.tiled(unpadded.eval(), IMAGE, tile=16, halo=2)
    classifier = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with pytest.raises(
        anynorm.SurgeryError, match=r"must be a tensor .* with 2 axes of positions; got shape \(1, 4\)\. forward="
    ):
        anynorm.tiled(classifier, IMAGE, tile=16)
    with pytest.raises(anynorm.SurgeryError, match=r"with 2 axes of positions; got a tuple"):
        anynorm.tiled(unpadded.eval(), IMAGE, tile=16, forward=lambda model, x: (model(x), x))
    flat = nn.Sequential(nn.Flatten(2), anynorm.make("in", 3)).eval()
    with pytest.raises(anynorm.SurgeryError, match=r"'1' got an input of shape \(1, 3, 2304\), whose positions are not those"):
        anynorm.tiled(flat, IMAGE, tile=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tile": 0}, "tile must be an integer of at least 1, or 2 of them; got 0"),
        ({"tile": (8, 8, 8)}, "tile must be an integer of at least 1, or 2 of them; got (8, 8, 8)"),
        ({"halo": -1}, "halo must be an integer of at least 0, or 2 of them; got -1"),
        ({"halo": 1.5}, "halo must be an integer of at least 0, or 2 of them; got 1.5"),
        ({"image": torch.zeros(2, 3)}, "image must be a tensor (n, c, …) with positions; got (2, 3)"),
        ({"image": [1]}, "image must be a tensor (n, c, …) with positions; got list"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    with pytest.raises(anynorm.SurgeryError, match=re.escape(message)):
        anynorm.tiled(model, **({"image": IMAGE} | arguments))


def run(model, passes, tiles_of_pass):
    """Run the tiles `tiles_of_pass(k)` in pass k."""
    for count in passes:
        for part in tiles_of_pass(count):
            model(part)


def test_wrong_loops_raise():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), anynorm.make("in", 8)).eval()
    parts = IMAGE.split(16, 2)
    samples = r"Every tile must have the same images as the others; '1' got 2 samples, and 1 in the tile before"
    with anynorm.tiles(model) as passes:
        assert isinstance(passes, TilePasses)
        with pytest.raises(anynorm.SurgeryError, match=r"tiles must run in a loop `for _ in passes:`"):
            model(parts[0])
        with pytest.raises(anynorm.SurgeryError, match=r"must run the same tiles; got 2 in pass 2, and 4 in the pass before"):
            run(model, passes, lambda count: parts[: 2 if count else 4])
        with pytest.raises(anynorm.SurgeryError, match=samples):
            run(model, passes, lambda count: (parts[0], parts[1].expand(2, -1, -1, -1)))
        with pytest.raises(anynorm.SurgeryError, match=samples):
            run(model, passes, lambda count: [part.expand(1 + count, -1, -1, -1) for part in parts])


@pytest.mark.parametrize("spec", ["in", "bn"])
def test_the_mask_of_a_model_is_refused(spec):
    model, image = nn.Sequential(anynorm.make(spec, 3), nn.Conv2d(3, 2, 1)).eval(), torch.randn(1, 3, 32, 32)
    valid = torch.ones(1, 32, 32, dtype=torch.bool).tril()
    with anynorm.mask(model, valid), pytest.raises(anynorm.SurgeryError, match=r"'0' has a mask .*which tiles do not support"):
        anynorm.tiled(model, image, tile=16, halo=0)
    torch.testing.assert_close(anynorm.tiled(model, image, tile=16, halo=0), model(image).detach(), atol=1e-5, rtol=1e-5)


def test_a_mask_that_a_model_passes_to_a_norm_is_refused():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = anynorm.make("in", 3)

        def forward(self, x):
            return self.norm(x, mask=x[:, 0] > 0)

    with pytest.raises(anynorm.SurgeryError, match=r"'norm' got a mask or batch_index"):
        anynorm.tiled(Masked().eval(), torch.randn(1, 3, 32, 32), tile=16, halo=0)
