"""The small convolutions for boards, and the encoder that is chosen for an observation."""

import pytest
import torch
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build, chosen_kind
from headrace.learner.models.encoders.grid import Grid
from headrace.learner.models.encoders.mlp import Mlp
from headrace.learner.spaces import Leaf, Spaces, discrete

BOARD = Leaf("board", "uint8", (7, 7, 3))
ATARI = Leaf("screen", "uint8", (84, 84), stack=4)
NUMBERS = Leaf("numbers", "float32", (3,))


def spaces_of(*leaves: Leaf, binary: tuple[str, ...] = ()) -> Spaces:
    return Spaces(leaves, discrete(5), binary=binary)


def model_of(*leaves: Leaf, **settings: object) -> Model:
    return build(ModelConfig(**settings), spaces_of(*leaves), seed=0)  # type: ignore[arg-type]


def plain(model: Model, board: torch.Tensor, codes: torch.Tensor | None) -> torch.Tensor:
    """Computes the network cell by cell, each byte's code looked up by hand."""
    state = {name.removeprefix("encoder."): held for name, held in model.state_dict().items()}
    x = board.float().log1p().movedim(-1, 1)
    if codes is not None:
        cells = [
            torch.cat([codes[16 * c + min(int(b), 15)] for c, b in enumerate(cell)])
            for cell in board.flatten(0, 2)
        ]
        coded = torch.stack(cells).view(*board.shape[:3], -1).movedim(-1, 1)
        x = torch.cat([x, coded], 1)
    for layer in ("stacks.0.conv1", "stacks.0.conv2"):
        x = functional.conv2d(x, state[f"{layer}.weight"], state[f"{layer}.bias"], padding=1).relu()
    rows = x.permute(0, 2, 3, 1).flatten(1)
    assert rows.shape == (len(board), 16 * 7 * 7)
    encoder = model.encoder
    assert isinstance(encoder, Grid) and encoder.units == 128
    made: torch.Tensor = encoder.full(rows).relu()
    return made


def test_it_is_codes_two_convolutions_and_a_layer() -> None:
    model = model_of(BOARD, separate=False)
    codes = model.state_dict()["encoder.stacks.0.codes"]
    assert codes.shape == (3 * 16, 4)
    board = torch.randint(0, 20, (4, 7, 7, 3), dtype=torch.uint8)
    torch.testing.assert_close(model.encoder({"board": board}), plain(model, board, codes))


def test_what_is_0_or_1_has_no_codes() -> None:
    spaces = spaces_of(BOARD, binary=("board",))
    model = build(ModelConfig(separate=False), spaces, seed=0)
    assert not [name for name in model.state_dict() if name.endswith("codes")]
    board = torch.randint(0, 2, (4, 7, 7, 3), dtype=torch.uint8)
    torch.testing.assert_close(model.encoder({"board": board}), plain(model, board, None))


def loss_of_the_same_thing_twice(binary: tuple[str, ...]) -> float:
    """Learns whether two things, each a key (5) or a ball (6), are the same; returns the loss in
    the end, which is log 2 at the beginning."""
    encoder = build(ModelConfig(separate=False), spaces_of(BOARD, binary=binary), seed=0).encoder
    rng = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(128, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    losses = []
    for _ in range(150):
        boards = torch.ones(64, 7, 7, 3, dtype=torch.uint8)
        things = torch.randint(5, 7, (64, 2), generator=rng).to(torch.uint8)
        boards[:, 3, 1, 0], boards[:, 3, 5, 0] = things.T
        same = (things[:, 0] == things[:, 1]).float()
        found = head(encoder({"board": boards})).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(found, same)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_codes_side_by_side_are_told_apart() -> None:
    """By their logarithms alone, as what is 0 or 1 is read, they are not."""
    assert loss_of_the_same_thing_twice(()) < 0.3
    assert loss_of_the_same_thing_twice(("board",)) > 0.6


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (3, 35, 35)])
def test_it_takes_images_of_any_small_size(shape: tuple[int, ...]) -> None:
    model = model_of(Leaf("obs", "uint8", shape), NUMBERS)
    rows = {"obs": torch.zeros(2, *shape, dtype=torch.uint8), "numbers": torch.zeros(2, 3)}
    assert model(rows).params.shape == (2, 5)


@pytest.mark.parametrize(
    ("leaves", "kind"),
    [
        ((NUMBERS,), "mlp"),
        ((Leaf("which", "int64", (), (4,)),), "mlp"),
        ((BOARD,), "grid"),
        ((BOARD, NUMBERS), "grid"),
        ((Leaf("obs", "uint8", (35, 84, 3)),), "grid"),
        ((Leaf("obs", "uint8", (36, 36, 3)),), "nature"),
        ((Leaf("obs", "uint8", (3, 36, 36)),), "nature"),
        ((ATARI,), "nature"),
        ((ATARI, NUMBERS), "nature"),
        ((ATARI, BOARD), "resnet"),
        ((Leaf("obs", "uint8", (4, 9, 9, 9)),), "mlp"),  # no image of height and width
        ((NUMBERS, Leaf("allowed", "uint8", (2, 2), mask=True)), "mlp"),
    ],
)
def test_auto_fits_the_observation(leaves: tuple[Leaf, ...], kind: str) -> None:
    assert chosen_kind(ModelConfig(), spaces_of(*leaves)) == kind
    assert type(model_of(*leaves).encoder) is type(model_of(*leaves, kind=kind).encoder)


def test_a_kind_that_is_named_stays() -> None:
    assert chosen_kind(ModelConfig(kind="resnet"), spaces_of(BOARD)) == "resnet"
    assert chosen_kind(ModelConfig(kind="mine:net"), spaces_of(BOARD)) == "mine:net"
    assert isinstance(model_of(BOARD, kind="mlp").encoder, Mlp)


@pytest.mark.parametrize(
    ("leaves", "settings", "apart"),
    [
        ((NUMBERS,), {}, True),
        ((BOARD,), {}, False),
        ((BOARD, NUMBERS), {}, False),
        ((ATARI,), {}, False),
        ((BOARD,), {"core": "lstm"}, True),
        ((BOARD,), {"kind": "mlp"}, True),
        ((BOARD,), {"separate": True}, True),
        ((NUMBERS,), {"separate": False}, False),
    ],
)
def test_convolutions_are_shared_unless_the_run_says_otherwise(
    leaves: tuple[Leaf, ...], settings: dict[str, object], apart: bool
) -> None:
    model = model_of(*leaves, **settings)
    assert (model.value_encoder is not None) is apart
    assert model.memory == ModelConfig(**settings).memory  # type: ignore[arg-type]
