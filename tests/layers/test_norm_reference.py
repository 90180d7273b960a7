"""Every norm equals its naive float64 reference: output, gradients, kept statistics, in training and in inference."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anynorm
from tests import references
from tests.helpers import condition_for, data, make, same

# spec -> cuts of the mean, cuts of the variance, in the words of the references; written by hand, not by the parser
TABLE = {
    "bn": (["bn"], ["bn"]),
    "in": (["in"], ["in"]),
    "ln": (["ln"], ["ln"]),
    "gn:4": (["gn:4"], ["gn:4"]),
    "en": (["en"], ["en"]),
    "en:4": (["en:4"], ["en:4"]),
    "bgn:2": (["bgn:2"], ["bgn:2"]),
    "bgn:24": (["bgn:24"], ["bgn:24"]),
    "bgn:48": (["bgn:48"], ["bgn:48"]),
    "bgn:8": (["bgn:8"], ["bgn:8"]),  # of 12 channels: groups end inside channels
    "bgn:18": (["bgn:18"], ["bgn:18"]),
    "[*,9]": (["joint:9"], ["joint:9"]),
    "[*,36]": (["joint:36"], ["joint:36"]),
    "bgn:9+in/[*,8]+bgn:18+ln": (["bgn:9", "in"], ["joint:8", "bgn:18", "ln"]),
    "bgn:9.saaux@3": (["bgn:9"], ["bgn:9"]),
    "gbgn:2,4": (["gbgn:2,4"], ["gbgn:2,4"]),
    "pn": (["pn"], ["pn"]),
    "hn": (["bn"], ["en"]),
    "hn:4": (["bn"], ["en:4"]),
    "sn": (["in", "ln", "bn"], ["in", "ln", "bn"]),
    "sn:2": (["in", "ln", "bn"], ["in", "ln", "bn"]),
    "sn.hard": (["in", "ln", "bn"], ["in", "ln", "bn"]),
    "sn:2.hard": (["in", "ln", "bn"], ["in", "ln", "bn"]),
    "sn-bn": (["in", "ln"], ["in", "ln"]),
    "ln+gn:4": (["ln", "gn:4"], ["ln", "gn:4"]),
    "bn/bn+en": (["bn"], ["bn", "en"]),
    "bn/bn+ln+in": (["bn"], ["bn", "ln", "in"]),
    "gn:4/en:2": (["gn:4"], ["en:2"]),
    "bgn:24+pn/gbgn:2,4+bgn:36": (["bgn:24", "pn"], ["gbgn:2,4", "bgn:36"]),
    "bn.none": (["bn"], ["bn"]),
    "ccbn@3": (["bn"], ["bn"]),
    "sabn@3": (["bn"], ["bn"]),
    "auxbn@3": (["bn"], ["bn"]),
    "saauxbn@3": (["bn"], ["bn"]),
    "hn:4.sa@3": (["bn"], ["en:4"]),
    "bgn:24.saaux@3": (["bgn:24"], ["bgn:24"]),
    "sn.aux@3": (["in", "ln", "bn"], ["in", "ln", "bn"]),
    "bn.dom@3": (["bn"], ["bn"]),
    "adain": (["in"], ["in"]),
    "saadain": (["in"], ["in"]),
    "rms": ([], ["pn"]),
    "0/in": ([], ["in"]),
    "0/bn": ([], ["bn"]),
    "0/gn:4.nobias": ([], ["gn:4"]),
    "0/gbgn:2,4": ([], ["gbgn:2,4"]),
    "0/bgn:24": ([], ["bgn:24"]),
    "0/bn+ln": ([], ["bn", "ln"]),
    "0/sn:2.hard": ([], ["in", "ln", "bn"]),
    "0/en:4.saaux@3": ([], ["en:4"]),
    "0/bn+in.dom@3": ([], ["bn", "in"]),
    "bn.nobias": (["bn"], ["bn"]),
}
C, SHAPE = 12, (4, 12, 2, 6)
DOMAINED = ("aux", "dom")


def weights(norm, side, hard):
    logits = getattr(norm, f"{side}_weight")
    if logits is None:
        return None
    exact = logits.double()
    return (
        torch.nn.functional.one_hot(exact.argmax(-1), exact.shape[-1]).double()
        if hard
        else torch.exp(exact) / torch.exp(exact).sum(-1, keepdim=True)
    )


def affine(norm, condition):
    pairs = []
    if norm.weight is not None:
        bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
        pairs.append((norm.weight.double()[None, :, None], bias.double()[None, :, None]))
    if norm.class_weight is not None:
        pairs.append((norm.class_weight.double()[condition][..., None], norm.class_bias.double()[condition][..., None]))
    if norm.norm_spec.takes_style:
        style = condition.double().flatten(2)
        pairs.append(((style.var(-1, correction=0, keepdim=True) + float(norm.eps)) ** 0.5, style.mean(-1, keepdim=True)))
    return pairs


def reference(spec, norm, x, condition):
    """Output of the naive formula on x, from the parameters of `norm`."""
    mean_cut_indices, var_cut_indices = TABLE[spec]
    domain = condition.tolist() if any(word in spec for word in DOMAINED) else None
    rows = x.double().flatten(2)
    zero_mean = not mean_cut_indices
    found = {cut: references.statistics(rows, cut, domain, zero_mean=zero_mean) for cut in {*mean_cut_indices, *var_cut_indices}}
    mean = references.weighted([found[cut][0] for cut in mean_cut_indices], weights(norm, "mean", "hard" in spec))
    var = references.weighted([found[cut][1] for cut in var_cut_indices], weights(norm, "var", "hard" in spec))
    return references.normalize(rows, mean, var, affine(norm, condition), float(norm.eps)).reshape(x.shape)


@pytest.mark.parametrize("spec", TABLE)
def test_training_output_and_all_gradients_are_those_of_the_reference(spec):
    norm, x = make(spec, channels=C), data(*SHAPE).requires_grad_()
    condition, target = condition_for(norm, x), data(*SHAPE, seed=5)
    if norm.norm_spec.takes_style:
        condition.requires_grad_()
    y = norm(x, condition)
    same(y, reference(spec, norm, x, condition).float(), rtol=1e-5, atol=1e-5)
    wanted = [x, *(p for p in norm.parameters() if p.requires_grad), *([condition] if norm.norm_spec.takes_style else [])]
    ours = torch.autograd.grad((y * target).sum(), wanted)
    exact = torch.autograd.grad((reference(spec, norm, x, condition) * target).sum(), wanted)
    for a, b in zip(ours, exact, strict=True):
        same(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [spec for spec in TABLE if make(spec, channels=C).pools_samples])
def test_running_statistics_and_inference_are_those_of_the_reference(spec):
    norm = make(spec, channels=C, momentum=0.3)
    mean_cut_indices, var_cut_indices = TABLE[spec]
    domains = norm.norm_spec.affine.num_domains or 1
    pooling = [
        [cut for cut in cuts if cut.split(":")[0] in ("bn", "en", "bgn", "gbgn")] for cuts in (mean_cut_indices, var_cut_indices)
    ]
    kept: dict[str, torch.Tensor] = {}
    for step in range(3):
        x = data(*SHAPE, seed=step)
        condition = condition_for(norm, x)
        domain = condition.tolist() if domains > 1 else None
        norm(x, condition)
        for side, cuts in enumerate(pooling):
            for k, cut in enumerate(cuts):
                new = references.kept_average(x.double().flatten(2), cut, domain, domains, zero_mean=not mean_cut_indices)[side]
                name = ("running_mean", "running_var")[side] + ("" if k == 0 else f"_{k + 1}")
                old = kept.get(name, torch.full_like(new, float(side)))
                kept[name] = references.running(old, new, 0.3)
    assert {name for name in norm.state_dict() if name.startswith("running")} == set(kept)
    for name, value in kept.items():
        same(getattr(norm, name), value.reshape(getattr(norm, name).shape).float())

    norm.eval()
    x = data(*SHAPE, seed=9)
    condition = condition_for(norm, x)
    tables = []
    for side, cuts in enumerate((mean_cut_indices, var_cut_indices)):
        laid: list[torch.Tensor] = []
        for cut in cuts:
            if cut not in pooling[side]:
                laid.append(references.statistics(x.double().flatten(2), cut, None, zero_mean=not mean_cut_indices)[:2][side])
                continue
            k = pooling[side].index(cut)
            table = kept[("running_mean", "running_var")[side] + ("" if k == 0 else f"_{k + 1}")]
            rows = table[condition] if domains > 1 else table.expand(len(x), -1)
            spread = math.prod(SHAPE[1:]) // rows.shape[1]
            laid.append(rows.repeat_interleave(spread, dim=1).reshape(len(x), C, -1))
        tables.append(references.weighted(laid, weights(norm, ("mean", "var")[side], "hard" in spec)))
    expected = references.normalize(x.double().flatten(2), tables[0], tables[1], affine(norm, condition)).reshape(x.shape)
    same(norm(x, condition), expected.float(), rtol=1e-5, atol=1e-5)


SIZE = st.integers(1, 4)


@given(
    cuts=st.lists(st.sampled_from(["bn", "in", "ln", "gn", "en", "bgn", "strips", "gbgn", "pn"]), min_size=2, max_size=2),
    samples=st.integers(1, 3),
    channels=st.sampled_from([1, 2, 4, 6]),
    space=st.lists(SIZE, max_size=3),
    layout=st.sampled_from(["contiguous", "channels_last", "strided", "transposed"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    draw=st.data(),
)
def test_any_pair_of_cuts_on_any_shape_layout_and_dtype_is_the_reference(cuts, samples, channels, space, layout, dtype, draw):
    s = math.prod(space)
    divisor = {size: st.sampled_from([k for k in range(1, size + 1) if size % k == 0]) for size in (channels, s, 2 * samples)}
    number = {
        "gn": lambda: f"gn:{draw.draw(divisor[channels])}",
        "en": lambda: f"en:{draw.draw(divisor[channels])}",
        "bgn": lambda: f"bgn:{draw.draw(divisor[channels])}",
        "strips": lambda: f"bgn:{channels * draw.draw(divisor[s])}",
        "gbgn": lambda: f"gbgn:{draw.draw(divisor[2 * samples])},{draw.draw(divisor[channels])}",
    }
    mean_cut, var_cut = (number.get(cut, lambda cut=cut: cut)() for cut in cuts)
    x = data(2 * samples, channels, *space, dtype=dtype)
    if layout == "channels_last" and x.dim() in (4, 5):
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    elif layout == "strided":
        x = x.repeat_interleave(2, dim=0)[::2]
    elif layout == "transposed" and x.dim() > 2:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    norm = anynorm.make(f"{mean_cut}/{var_cut}", channels, dtype=torch.float32 if dtype != torch.float64 else dtype)
    try:
        y = norm(x)
    except anynorm.ShapeError as error:
        assert "one value" in str(error)
        return
    mean, _, _ = references.statistics(x.double().flatten(2) if space else x.double()[..., None], mean_cut)
    _, var, _ = references.statistics(x.double().flatten(2) if space else x.double()[..., None], var_cut)
    expected = references.normalize(x.double().reshape(mean.shape), mean, var, []).reshape(x.shape)
    assert y.dtype == x.dtype
    tolerance = (
        {} if dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-4, "atol": 1e-4 if dtype == torch.float32 else 1e-7}
    )
    same(y, expected.to(dtype), **tolerance)
    if x.is_contiguous():
        assert y.is_contiguous()
    if layout == "channels_last" and x.dim() == 4:
        assert y.is_contiguous(memory_format=torch.channels_last)
