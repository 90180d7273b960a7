"""What profiles showed to be the causes of ratios above the aims, by the name and statistic of the aim.

Shares are those of the CPU time of one process with one thread, by `perf record` (AMD EPYC, two busy cores, torch 2.13.0, commit
4eac878, one run each). The page shows a cause only if its aim is missed.
"""

from __future__ import annotations

CAUSES = {
    ("layer / nn.BatchNorm, x of 0.1 MB and more", "worst"): (
        "Vectors with statistics per sample. At 256×512, `gn:32` has one mean and one variance per 16 values, 8192 of each, "
        "and nn.BatchNorm1d has 512. A training step takes 652 µs of CPU time (nn.BatchNorm1d: 185 µs), 71 % of it in the "
        "kernels: 28 % for the sums over each group in backward, 13 % for means and variances, 27 % for writing y and dx. "
        "Python has 15 %. `sn`, with three kinds of statistics, takes 373 µs, 26 % of it for the sums over each sample in "
        "backward."
    ),
    ("layer / nn.BatchNorm at 4×64×8×8, 64×128, 256×512", "worst"): "The same vectors.",
    ("inference of a layer at the same shapes / nn.BatchNorm", "worst"): (
        "Norms with statistics of the input compute them in inference too, where nn.BatchNorm reads them: `gn:32` at "
        "256×512 spends 83 % of its 163 µs of CPU time in the kernels, a third of that on means and variances. `bn` at "
        "64×128 takes 15 µs, 71 % of it Python (checks of the input, and the choice of the kernels), 16 % in the kernels."
    ),
    ("MobileNetV2 step, fused / nn.BatchNorm2d", "worst"): (
        "Convolutions. At batch size 2 they take 55 % of the CPU time of a step with nn.BatchNorm2d, and batch norms 18 "
        "%. Fused, the step takes 0.79 of that time: convolutions are 61 % of it, the kernels of `bn` 11 %, Python 9 %. "
        "With norms that take no time, it would take 0.70."
    ),
    ("ResNet-50 step, fused / nn.BatchNorm2d", "worst"): (
        "Convolutions. At batch size 2 they take 80 % of the CPU time of a step with nn.BatchNorm2d, and batch norms 7 %: "
        "norms that take no time would reach 0.93. The kernels of fused `sn` take 6 %."
    ),
    ("inference of networks, fused / nn.BatchNorm2d", "worst"): (
        "Python, in small networks. ResNet-20 at batch size 2 takes 4 ms: Python has 21 % of the CPU time with "
        "nn.BatchNorm2d and 31 % with fused norms, whose kernels have 3 % (`sn`: 5 %). "
        "[Folded](../docs/guide/surgery.md#deploy-fold), norms with running statistics take no time at all."
    ),
}
