"""The result of several runs: mean and standard deviation of a value over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """Mean and standard deviation of a value over seeds.

    As text, it is "mean ± sd", with the number of failed runs if there are any; "failed" if all runs failed, "" without runs. The
    format specification is that of the mean and the sd, separated by " ± " if they differ; it is ".4g ± .2g" by default. With
    brackets, ".1f [.1f]", the text is "mean [low, high]" with the limits of the 95 % confidence interval.

    Attributes:
        mean: mean over the runs that did not fail; None if there are none.
        sd: sample standard deviation; None for fewer than two values, and if the mean is not finite.
        n: number of runs that did not fail.
        num_failed: number of failed runs.

    >>> result = Result.of([30.0, 32.0, None])
    >>> result.mean, result.n, result.num_failed
    (31.0, 2, 1)
    >>> f"{result}", f"{result:.1f}", f"{result:+.0f ± .1f}"
    ('31 ± 1.4, 1 of 3 failed', '31.0 ± 1.4, 1 of 3 failed', '+31 ± 1.4, 1 of 3 failed')
    >>> f"{Result.of([30.0, 32.0, 31.0]):.1f [.1f]}"
    '31.0 [28.5, 33.5]'
    """

    mean: float | None
    sd: float | None
    n: int
    num_failed: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Result:
        """Return the result of one value per seed; a value is None where the run failed."""
        runs = list(values)
        successful = [value for value in runs if value is not None]
        mean = statistics.fmean(successful) if successful else None
        has_sd = mean is not None and math.isfinite(mean) and len(successful) > 1
        return cls(mean, statistics.stdev(successful) if has_sd else None, len(successful), len(runs) - len(successful))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The limits of the 95 % confidence interval of the mean (Student's t); None without a standard deviation."""
        if self.mean is None or self.sd is None:
            return None
        from scipy.stats import t  # scipy takes a second to import

        half = float(t.isf(0.025, self.n - 1)) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half

    def __format__(self, format_spec: str) -> str:
        if self.mean is None:
            return "failed" if self.num_failed else ""
        mean_spec, _, interval_spec = format_spec.partition(" [")
        if interval_spec:
            limits = self.interval
            spread = "" if limits is None else " [" + ", ".join(f"{limit:{interval_spec[:-1]}}" for limit in limits) + "]"
        else:
            mean_spec, _, sd_spec = (format_spec or ".4g ± .2g").partition(" ± ")
            spread = "" if self.sd is None else f" ± {self.sd:{sd_spec or mean_spec}}"
        failed = f", {self.num_failed} of {self.n + self.num_failed} failed" if self.num_failed else ""
        return f"{self.mean:{mean_spec}}{spread}{failed}"

    def __str__(self) -> str:
        return format(self)
