"""Generators and discriminators against their formulas, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d

import anynorm
from anynorm.lab.data.shape import DataShape
from anynorm.lab.tasks.generation.networks import GAN, GANS, build_gan, split_size
from anynorm.lab.tasks.generation.networks.blocks import DownBlock, SelfAttention, UpBlock, conv2d
from anynorm.lab.tasks.generation.networks.generators import PredictedAffineNorm
from anynorm.lab.training.norm_layout import Layout
from tests.helpers import same

SHAPE = DataShape(3, 32, 32, 10)


def count_parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def has_spectral_norm(layer):
    return hasattr(layer, "parametrizations")


def test_the_networks_of_sngan_have_the_published_sizes():
    generator, discriminator = build_gan("sngan", SHAPE)
    linear, block, last = 129 * 4096, 2 * 9 * 256 * 256 + 256 * 256 + 3 * 256 + 4 * 256, 512 + 9 * 256 * 3 + 3
    assert count_parameters(generator) == linear + 3 * block + last == 4_276_739
    first = 9 * 3 * 128 + 9 * 128 * 128 + 3 * 128 + 3 * 128
    plain = 2 * 9 * 128 * 128 + 2 * 128
    assert count_parameters(discriminator) == first + 3 * plain + 128 * 128 + 128 + 128 + 10 * 128


@pytest.mark.parametrize("name", GANS)
@pytest.mark.parametrize("size", [8, 28, 64])
def test_images_have_the_size_of_the_data(name, size):
    generator, discriminator = build_gan(name, DataShape(1, size, size, 3), 1 / 32)
    images = generator(torch.randn(2, generator.latent_size))
    assert images.shape == (2, 1, size, size)
    assert images.abs().max() <= 1
    assert discriminator(images, torch.tensor([0, 2])).shape == (2,)


def test_an_up_block_is_its_formula():
    block, x = UpBlock(4, 6, conv2d), torch.randn(5, 4, 3, 3)
    h = block.conv1(interpolate(block.norm1(x).relu(), scale_factor=2))
    expected = block.conv2(block.norm2(h).relu()) + block.shortcut(interpolate(x, scale_factor=2))
    same(block(x), expected)


@pytest.mark.parametrize("pool", [True, False])
def test_a_down_block_is_its_formula(pool):
    block, x = DownBlock(4, 6, conv2d, pool=pool), torch.randn(2, 4, 6, 6)
    expected = block.conv2(block.conv1(x.relu()).relu()) + block.shortcut(x)
    same(block(x), avg_pool2d(expected, 2) if pool else expected)
    assert isinstance(DownBlock(4, 4, conv2d, pool=False).shortcut, nn.Identity)


def test_self_attention_is_its_formula():
    attention, x = SelfAttention(16, conv2d), torch.randn(2, 16, 4, 4)
    same(attention(x), x)
    nn.init.constant_(attention.weight, 0.7)
    query, key = attention.query(x).flatten(2), max_pool2d(attention.key(x), 2).flatten(2)
    weights = torch.einsum("ncq,nck->nqk", query, key).softmax(-1)
    values = torch.einsum("nck,nqk->ncq", max_pool2d(attention.value(x), 2).flatten(2), weights)
    same(attention(x), x + 0.7 * attention.output(values.unflatten(2, (4, 4))))


def test_classes_enter_the_discriminator_by_a_projection():
    discriminator = build_gan("sngan", SHAPE, 1 / 16).discriminator.eval()
    images, first, second = torch.randn(3, 3, 32, 32), torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    h = discriminator.blocks(images).relu().sum((2, 3))
    table = discriminator.embedding.weight
    same(discriminator(images, first) - discriminator(images, second), ((table[first] - table[second]) * h).sum(1))


def test_spectral_norms_are_one_after_a_few_passes():
    generator, discriminator = build_gan("biggan", SHAPE, 1 / 16)
    for _ in range(30):
        discriminator(generator(torch.randn(2, 128)), torch.tensor([0, 1]))
    layers = [layer for network in (generator, discriminator) for layer in network.modules() if has_spectral_norm(layer)]
    assert len(layers) == 1 + 3 * 3 + 1 + 4 * 2 + 2 + 2
    for layer in layers:
        same(torch.linalg.matrix_norm(layer.weight.flatten(1), 2), torch.tensor(1.0), rtol=0.05, atol=0)  # power iteration
    assert not any(has_spectral_norm(layer) for layer in build_gan("sngan", SHAPE, 1 / 16).generator.modules())


def test_autogan_has_skips_from_all_cells_before_and_no_shortcut_in_the_last():
    cells = build_gan("autogan", SHAPE, 1 / 32).generator.blocks
    assert [len(cell.skips) for cell in cells] == [0, 1, 2]
    assert [cell.mode for cell in cells] == ["nearest", "bilinear", "nearest"]
    assert [hasattr(cell, "shortcut") for cell in cells] == [True, True, False]


def test_a_cell_adds_skips_before_its_second_norm_and_passes_the_sum_on():
    cell = build_gan("autogan", SHAPE, 1 / 32).generator.blocks[2]
    x, before = torch.randn(2, 8, 4, 4), [torch.randn(2, 8, 2, 2), torch.randn(2, 8, 4, 4)]
    hidden = cell.conv1(interpolate(cell.norm1(x).relu(), scale_factor=2))
    hidden = hidden + sum(skip(interpolate(b, size=(8, 8))) for skip, b in zip(cell.skips, before, strict=True))
    output, passed = cell(x, before)
    same(output, cell.conv2(cell.norm2(hidden).relu()))
    same(passed, hidden)


def test_a_norm_with_a_predicted_affine_is_its_formula():
    norm, x, embedding = PredictedAffineNorm(3, 5, nn.Linear), torch.randn(4, 3, 6, 6), torch.randn(4, 5)
    Layout.parse("bn.style", 4).apply(norm)
    scale, shift = (layer(embedding)[..., None, None] for layer in (norm.scale, norm.shift))
    same(norm(x, embedding), nn.functional.batch_norm(x, None, None, training=True) * (1 + scale) + shift)


@pytest.mark.parametrize("flags", [["shared_embedding"], ["shared_embedding", "attention"]])
def test_a_shared_embedding_conditions_all_blocks(flags):
    generator = build_gan("biggan", SHAPE, 1 / 32, flags).generator
    Layout.parse("bn.sastyle", 4).apply(generator.blocks)
    assert float(generator.embedding.table.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    z = torch.randn(4, 128)
    generator.eval()
    with anynorm.condition(generator, torch.tensor([1, 1, 2, 2])):
        mixed = generator(z)
    with anynorm.condition(generator, 1):
        same(generator(z)[:2], mixed[:2])
        assert not torch.allclose(generator(z)[2:], mixed[2:])
        images = generator(z)
        for start in (0, 32, 64, 96):  # every part of z matters: three for the blocks, one for the first layer
            changed = z.clone()
            changed[:, start : start + 32] = 0
            assert not torch.equal(generator(changed), images)
    with pytest.raises(anynorm.ConditionError, match=r"the generator needs classes: call it inside `with anynorm.condition"):
        generator(z)
    with pytest.raises(anynorm.ConditionError, match=r"must be in \[0, 10\); got 12"), anynorm.condition(generator, 12):
        generator(z)


def single():
    return nn.Linear(1, 1)


def without_latent_size():
    return nn.Linear(1, 1), nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sngam", SHAPE), r"unknown model for generation 'sngam'. Did you mean sngan\?"),
        (("sngan", SHAPE, 1.0, ["attention"]), "sngan has no option attention. Usable: biggan"),
        (("tests.lab.tasks.generation.test_networks:single", SHAPE), "must return a generator and a discriminator; got Linear"),
        (("tests.lab.tasks.generation.test_networks:without_latent_size", SHAPE), "must have the attribute latent_size"),
        (("sngan", DataShape(3, 32, 16, 2)), "square images .* got 32 × 16 pixels. Usable: image_size=32"),
        (("sngan", DataShape(3, 227, 227, 2)), "got 227 × 227 pixels"),
        (("sngan", DataShape(3, 4, 4, 2)), "got 4 × 4 pixels"),
    ],
)
def test_networks_that_cannot_be_built_are_refused(arguments, message):
    with pytest.raises(anynorm.DataError, match=message):
        build_gan(*arguments)


def test_most_sizes_can_be_generated():
    assert [split_size(DataShape(3, size, size, 2)) for size in (8, 20, 96, 128)] == [(4, 1), (5, 2), (6, 4), (4, 5)]
    assert isinstance(build_gan("sngan", SHAPE, 1 / 32), GAN)
