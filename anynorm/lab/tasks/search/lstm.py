"""An LSTM cell with norms at the positions of the layer-normalized LSTM (Ba et al. 2016, eqs. 20 to 22).

    i, f, g, o = N_x(W_x x) + N_h(W_h h) + b
    c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g)
    h' = σ(o) ⊙ tanh(N_c(c'))

The inputs of N_x and N_h are the 4H values of all four gates: `gn:4` normalizes each gate separately, `ln` all four together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anynorm.errors import ShapeError, SpecError
from anynorm.registry import make


class NormLSTMCell(nn.Module):
    """An LSTM cell with optional norms; without norms it equals `torch.nn.LSTMCell`.

    In inference, norms that pool over samples (`bn`) use one set of running statistics for all time steps. The statistics of
    early steps differ from those of later steps, so these norms are less accurate in an LSTM than in a network without
    recurrence.

    Args:
        input_size: number of features of x.
        hidden_size: number of features of h and c.
        input_norm: the spec of N_x; None for no norm.
        hidden_norm: the spec of N_h; None for no norm.
        cell_norm: the spec of N_c; None for no norm.
        bias: whether to add b, the sum of `bias_ih` and `bias_hh`.

    Raises:
        SpecError: if a size is smaller than 1, a spec does not fit its number of features, or a norm needs a class or style.

    >>> cell = NormLSTMCell(8, 16, input_norm="ln", hidden_norm="ln", cell_norm="gn:4")
    >>> h, c = cell(torch.randn(5, 8))
    >>> h.shape, c.shape
    (torch.Size([5, 16]), torch.Size([5, 16]))
    """

    bias_ih: nn.Parameter | None
    bias_hh: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        input_norm: str | None = None,
        hidden_norm: str | None = None,
        cell_norm: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if input_size < 1 or hidden_size < 1:
            raise SpecError(f"input_size and hidden_size must be at least 1; got {input_size} and {hidden_size}.")
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, nn.Parameter(torch.empty(4 * hidden_size)) if bias else None)
        self.input_norm = _make_norm(input_norm, 4 * hidden_size)
        self.hidden_norm = _make_norm(hidden_norm, 4 * hidden_size)
        self.cell_norm = _make_norm(cell_norm, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights and biases from U(−1/√H, 1/√H), as `torch.nn.LSTMCell` does, and reset the norms."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)
        for norm in (self.input_norm, self.hidden_norm, self.cell_norm):
            if not isinstance(norm, nn.Identity):
                norm.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the next h and c.

        Args:
            x: (n, input_size).
            state: h and c, each (n, hidden_size); None for zeros.

        Raises:
            ShapeError: if x does not have this shape.
        """
        if x.dim() != 2 or x.shape[1] != self.input_size:
            raise ShapeError(f"x must be of shape (n, {self.input_size}); got {tuple(x.shape)}.")
        if state is None:
            state = x.new_zeros(len(x), self.hidden_size), x.new_zeros(len(x), self.hidden_size)
        h, c = state
        gates = self.input_norm(x @ self.weight_ih.T) + self.hidden_norm(h @ self.weight_hh.T)
        if self.bias_ih is not None and self.bias_hh is not None:
            gates = gates + (self.bias_ih + self.bias_hh)
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.cell_norm(c).tanh(), c

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias_ih is not None}"


def _make_norm(spec: str | None, num_features: int) -> nn.Module:
    if spec is None:
        return nn.Identity()
    norm = make(spec, num_features)
    if norm.takes_condition:
        raise SpecError(f"norms of an LSTM cell must not take a class or style; got {spec}.")
    return norm
