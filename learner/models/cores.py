"""Cores: the memory between the encoder and the heads. Here the recurrent ones; attention.py has
the transformer.

The inputs' product is computed for all rows at once; only the product with the state goes from row
to row, on a GPU as one kernel with the gates; on a CPU an LSTM is oneDNN's. All of it is float32:
bfloat16's eight bits would lose what must be remembered.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.learner.models.kernels import cpu_lstm
from headrace.learner.models.kernels.usable import usable
from headrace.learner.models.layers import linear, without_autocast


class Core(nn.Module, ABC):
    """Maps inputs and a memory [B, size] to outputs: of many rows to train, of one to act."""

    size: int  # numbers in the memory of one environment; all 0 = it is empty
    units: int

    @abstractmethod
    def forward(self, x: Tensor, memory: Tensor, begins: Tensor | None = None) -> Tensor:
        """Returns the outputs [T, B, units] of inputs [T, B, inputs]. Where `begins` [T, B] is set,
        a row starts from an empty memory."""

    @abstractmethod
    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output [B, units] of one row [B, inputs], and the memory after it."""


class Recurrent(Core):
    """Goes from row to row.

    The gates' order, and with it every weight, is that of torch.nn.LSTM and torch.nn.GRU.
    """

    gates: int

    def __init__(self, inputs: int, units: int, rng: torch.Generator, *, bias: float) -> None:
        """Makes the first weights; `bias` is that of the gate that keeps the memory.

        With 0 that gate lets half of the memory through at each step, and nothing can be learned
        from a cue 25 steps ago. Gradient of the output by the input of an earlier step, as a part
        of that by its own (128 units, mean of 8 seeds):

            steps ago          10       25       50
            LSTM   bias 0      0.0039   2.4e-6   1.2e-11
                   bias 1      0.094    0.0063   7.9e-5
                   bias 2      0.47     0.33     0.21
                   bias 3      0.93     1.4      2.4       explodes
            GRU    bias 0      0.0054   5.3e-6   6.2e-11
                   bias 1      0.064    0.0019   6.9e-6
                   bias 2      0.29     0.057    0.0047
                   bias 3      0.61     0.31     0.10      the input's own is a tenth of bias 0's

        Chrono initialisation (Tallec and Ollivier, 2018) for 50 steps gives 0.25, 0.12, 0.056, but
        of a fourth of the LSTM's own gradient, for it closes the gate of the inputs. Recurrent
        weights that are orthogonal gate by gate explode with bias 2: 1.2, 2.4, 4.5.

        So a choice of four, shown once, is learned 25 steps later: cross-entropy after 250 steps of
        Adam 1.39 (chance) with 0, 0.41 with 2 (GRU 0.05). What lies one step back is learned alike.
        """
        super().__init__()
        self.units = units
        self.inputs = linear(inputs, self.gates * units, 1.0, rng)
        self.recurrent = linear(units, self.gates * units, 1.0, rng)
        with torch.no_grad():  # it is the second gate of both
            self.inputs.bias[units : 2 * units] = bias

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor | None = None) -> Tensor:
        if begins is None:
            begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        with without_autocast(x.device.type):
            x = x.float()
            if usable(x):
                return self.by_kernels(self.added(x), memory, (~begins).float())
            return self.rows(x, memory, begins)

    def rows(self, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """Computes one row after the other."""
        outputs = []
        kept = (~begins).unsqueeze(-1).to(memory.dtype)
        for added, keep in zip(self.added(x).unbind(0), kept.unbind(0), strict=True):
            output, memory = self.add(added, memory * keep)
            outputs.append(output)
        return torch.stack(outputs)

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        with without_autocast(x.device.type):
            return self.add(self.added(x.float()), memory)

    def added(self, x: Tensor) -> Tensor:
        """Returns what inputs add to the gates."""
        return functional.linear(x, self.inputs.weight, self.inputs.bias)

    @abstractmethod
    def add(self, added: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one row: the output, which is the state that is multiplied, and the memory."""

    @abstractmethod
    def by_kernels(self, added: Tensor, memory: Tensor, kept: Tensor) -> Tensor:
        """Computes all rows by kernels of a GPU; a row begins with its memory times `kept`."""


class Lstm(Recurrent):
    """Keeps h and c, side by side, as its memory."""

    gates = 4

    def __init__(self, inputs: int, units: int, rng: torch.Generator, *, bias: float) -> None:
        super().__init__(inputs, units, rng, bias=bias)
        self.size = 2 * units

    def rows(self, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        if x.device.type != "cpu" or len(x) == 1:
            return super().rows(x, memory, begins)
        return cpu_lstm.lstm(x, memory, begins, self.inputs, self.recurrent)

    def add(self, added: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        h, c = memory.chunk(2, dim=-1)
        gates = torch.addmm(added + self.recurrent.bias, h, self.recurrent.weight.t())
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, torch.cat([h, c], dim=-1)

    def by_kernels(self, added: Tensor, memory: Tensor, kept: Tensor) -> Tensor:
        from headrace.learner.models.kernels.lstm import lstm

        return lstm(added, memory, kept, self.recurrent.weight, self.recurrent.bias)


class Gru(Recurrent):
    """Keeps its output as its memory."""

    gates = 3

    def __init__(self, inputs: int, units: int, rng: torch.Generator, *, bias: float) -> None:
        super().__init__(inputs, units, rng, bias=bias)
        self.size = units

    def add(self, added: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        carried = torch.addmm(self.recurrent.bias, memory, self.recurrent.weight.t())
        reset_in, update_in, new_in = added.chunk(3, dim=-1)
        reset_h, update_h, new_h = carried.chunk(3, dim=-1)
        new = (new_in + (reset_in + reset_h).sigmoid() * new_h).tanh()
        h = torch.lerp(new, memory, (update_in + update_h).sigmoid())
        return h, h

    def by_kernels(self, added: Tensor, memory: Tensor, kept: Tensor) -> Tensor:
        from headrace.learner.models.kernels.gru import gru

        return gru(added, memory, kept, self.recurrent.weight, self.recurrent.bias)


CORES: dict[str, type[Recurrent]] = {"lstm": Lstm, "gru": Gru}
