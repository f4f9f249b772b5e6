"""Every kernel against plain torch in float32: on a GPU as it runs there, else interpreted."""

import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is defined

pytest.importorskip("triton", reason="triton is for Linux on x86-64 only")

from headrace.learner.models import cores
from headrace.learner.models.cores import CORES
from headrace.learner.models.kernels import gradients, recurrence
from headrace.learner.models.kernels.accumulate import accumulate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter does not know bfloat16. Both have 16 bits.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
CLOSE = 8e-3 if DEVICE == "cuda" else 1e-3  # of the norm


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape and bool(found.isfinite().all())
    distance = (found.detach().float() - wanted.detach()).norm() / wanted.detach().norm()
    assert float(distance) < CLOSE


def half(*shape: int) -> Tensor:
    return torch.randn(shape).to(HALF).to(DEVICE)


def layer(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Conv2d:
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding).to(DEVICE)
    with torch.no_grad():
        made.weight.copy_(made.weight.to(HALF))
    return made


def inner(x: Tensor) -> Tensor:
    """Puts the channels first, as torch has them, in float32."""
    return x.detach().float().permute(0, 3, 1, 2)


def check(found: Tensor, x: Tensor, wanted: Tensor, plain: Tensor, layers: list[nn.Conv2d]) -> None:
    """Compares what comes out and all gradients, for one gradient of what comes out."""
    close(found, wanted.permute(0, 2, 3, 1))
    dy = half(*found.shape)
    parameters = [one for each in layers for one in each.parameters()]
    ours = torch.autograd.grad(found, [*([x] if x.requires_grad else []), *parameters], dy)
    given = [*([plain] if plain.requires_grad else []), *parameters]
    theirs = list(torch.autograd.grad(wanted, given, inner(dy)))
    if plain.requires_grad:
        theirs[0] = theirs[0].permute(0, 2, 3, 1)
    for own, other in zip(ours, theirs, strict=True):
        close(own, other)


# Sides and numbers of images at which blocks end in the middle of a row, and of an image.
@pytest.mark.parametrize(("n", "h", "w"), [(3, 7, 6), (1, 1, 1), (2, 11, 9)])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (16, 32), (32, 32)])
def test_a_convolution(n: int, h: int, w: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    conv, x = layer(inputs, outputs, 3, 1, 1), half(n, h, w, inputs).requires_grad_()
    plain = inner(x).requires_grad_()
    check(gradients.convolution(x, conv.weight, conv.bias), x, conv(plain), plain, [conv])  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "h", "w", "channels"), [(3, 7, 6, 16), (2, 5, 9, 32), (1, 1, 1, 16)])
def test_a_residual_block(n: int, h: int, w: int, channels: int) -> None:
    torch.manual_seed(0)
    first, second = layer(channels, channels, 3, 1, 1), layer(channels, channels, 3, 1, 1)
    x = half(n, h, w, channels).requires_grad_()
    plain = inner(x).requires_grad_()
    wanted = plain + second(first(plain.relu()).relu())
    check(gradients.residual_block(x, first, second), x, wanted, plain, [first, second])


@pytest.mark.parametrize(("n", "h", "w", "channels"), [(3, 7, 6, 16), (2, 8, 9, 32), (5, 1, 2, 16)])
def test_pooling(n: int, h: int, w: int, channels: int) -> None:
    torch.manual_seed(0)
    x = half(n, h, w, channels).requires_grad_()
    plain = inner(x).requires_grad_()
    check(gradients.pooling(x), x, functional.max_pool2d(plain, 3, 2, 1), plain, [])


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "outputs"),
    [((3, 4, 13, 11), 3, 1, 1, 16), ((2, 3, 36, 40), 8, 4, 0, 32), ((1, 1, 36, 36), 8, 4, 0, 32)],
)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("inner_channels", [False, True])
def test_bytes(
    shape: tuple[int, ...],
    kernel: int,
    stride: int,
    padding: int,
    outputs: int,
    relu: bool,
    inner_channels: bool,
) -> None:
    torch.manual_seed(0)
    conv = layer(shape[1], outputs, kernel, stride, padding)
    x = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    if inner_channels:
        x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    with torch.no_grad():
        conv.weight.div_(64)
    found = gradients.pixel_convolution(
        x,
        conv.weight,
        conv.bias,  # type: ignore[arg-type]
        stride=stride,
        padding=padding,
        relu=relu,
        dtype=HALF,
    )
    plain = x.float()
    wanted = conv(plain).relu() if relu else conv(plain)
    check(found, x, wanted, plain, [conv])


@pytest.mark.parametrize(("steps", "columns"), [(7, 50), (1, 1), (20, 33)])
def test_the_sum_from_the_last_step_to_the_first(steps: int, columns: int) -> None:
    torch.manual_seed(0)
    deltas, factors = torch.randn(steps, columns), torch.rand(steps, columns)
    wanted = accumulate(deltas=deltas, factors=factors)
    found = recurrence.accumulate(deltas.to(DEVICE), factors.to(DEVICE)).cpu()
    torch.testing.assert_close(found, wanted)


# Sizes and columns at which blocks end in the middle.
@pytest.mark.parametrize(
    ("steps", "columns", "size"), [(5, 3, 16), (1, 1, 7), (4, 37, 40), (3, 33, 64)]
)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("begins", [True, False])
def test_a_recurrent_core(
    kind: str, steps: int, columns: int, size: int, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = CORES[kind](5, size, torch.Generator().manual_seed(1), bias=1.0)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    torch.manual_seed(0)
    x = torch.randn(steps, columns, 5, requires_grad=True)
    memory = torch.randn(columns, core.size, requires_grad=True)
    first = torch.rand(steps, columns) < 0.3
    weights = torch.randn(steps, columns, size)

    def run(device: str) -> list[Tensor]:
        """Returns outputs and all gradients."""
        placed = core.to(device)
        given = [x.to(device), memory.to(device)]
        found = placed(*given, first.to(device) if begins else None)
        loss = (found * weights.to(device)).sum()
        wanted = [x, memory, *placed.parameters()]
        return [one.detach().cpu() for one in (found, *torch.autograd.grad(loss, wanted))]

    plain = run("cpu")
    monkeypatch.setattr(cores, "usable", lambda _: True)
    for own, other in zip(run(DEVICE), plain, strict=True):
        assert float((own - other).norm()) <= 1e-5 * float(other.norm())
