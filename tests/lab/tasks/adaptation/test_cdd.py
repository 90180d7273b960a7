"""Contrastive domain discrepancy against naive loops, and its two normalizations."""

import math

import pytest
import torch

import anynorm
from anynorm.lab.tasks.adaptation.cdd import cdd_of_all_classes, cdd_of_sampled_classes, class_discrepancies


def squared(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def bandwidth(source, target):
    """Return the mean squared distance of all pairs of the union, without the diagonal."""
    union = source + target
    distances = [squared(x, y) for i, x in enumerate(union) for j, y in enumerate(union) if i != j]
    return sum(distances) / len(distances)


def naive_mmd(source, target, gamma):
    def mean_kernel(xs, ys):
        values = [math.exp(-squared(x, y) / (gamma * 2.0**q)) for x in xs for y in ys for q in (-2, -1, 0, 1, 2)]
        return sum(values) / (len(xs) * len(ys))

    return mean_kernel(source, source) + mean_kernel(target, target) - 2 * mean_kernel(source, target)


def naive_cdd(source, target, gammas, num_classes):
    """Return the discrepancy of one layer by loops over classes; `gammas` are constants."""
    count = len(source)
    within = between = 0.0
    for i in range(count):
        for j in range(count):
            value = naive_mmd(source[i], target[j], gammas[i][j])
            within, between = (within + value, between) if i == j else (within, between + value)
    return within / num_classes - between / (num_classes * (num_classes - 1))


def layers(seed=0, classes=3, samples=(2, 3)):
    generator = torch.Generator().manual_seed(seed)
    sizes = (4, 2)  # features and probabilities
    return [[torch.randn(classes, n, d, generator=generator, dtype=torch.float64) * 0.8 for d in sizes] for n in samples]


def test_the_discrepancy_and_its_gradient_agree_with_a_naive_double_loop():
    source, target = layers()
    for x in (*source, *target):
        x.requires_grad_(True)
    gammas = [[[bandwidth(s, t) for t in b.tolist()] for s in a.tolist()] for a, b in zip(source, target, strict=True)]

    def naive(num_classes):
        pairs = zip(source, target, gammas, strict=True)
        return sum(naive_cdd(a.tolist(), b.tolist(), gamma, num_classes) for a, b, gamma in pairs)

    for value, num_classes in ((cdd_of_sampled_classes(source, target), 3), (cdd_of_all_classes(source, target, 7), 7)):
        assert value.item() == pytest.approx(naive(num_classes), rel=1e-12)
        gradients = torch.autograd.grad(value, [*source, *target])
        for x, gradient in zip((*source, *target), gradients, strict=True):
            for index in ((0, 0, 0), (1, 1, 1), (2, 0, 1)):
                values = []
                for step in (1e-5, -1e-5):
                    with torch.no_grad():
                        x[index] += step
                        values.append(naive(num_classes))
                        x[index] -= step
                assert gradient[index].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6, abs=1e-9)


def test_a_class_has_no_discrepancy_to_itself_and_distant_classes_have_the_most():
    x = layers()[0][0]
    matrix = class_discrepancies(x, x)
    torch.testing.assert_close(matrix.diagonal(), torch.zeros(3, dtype=torch.float64))
    far = class_discrepancies(x, x + 100)
    assert (far > matrix.max()).all()
    assert (far < 10).all()  # two means of five kernels that are at most 1


def test_equal_points_have_a_discrepancy_of_zero_and_a_finite_gradient():
    x = torch.zeros(2, 3, 4, requires_grad=True)
    value = cdd_of_sampled_classes([x], [torch.zeros(2, 3, 4)])
    (gradient,) = torch.autograd.grad(value, x)
    assert value.item() == 0
    assert torch.isfinite(gradient).all()


def test_batches_without_classes_to_contrast_are_refused():
    one = torch.zeros(1, 3, 4)
    with pytest.raises(anynorm.DataError, match="a batch must have at least 2 classes; got 1"):
        cdd_of_sampled_classes([one], [one])
    with pytest.raises(anynorm.DataError, match=r"same classes and d in both domains; got \(2, 3, 4\) and \(3, 3, 4\)"):
        cdd_of_all_classes([torch.zeros(2, 3, 4)], [torch.zeros(3, 3, 4)], 5)
