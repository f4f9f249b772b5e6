"""An encoder of the user's own: called as the page says, refused in one line."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.learner.config import ModelConfig
from headrace.learner.models import precision
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders import custom
from headrace.learner.spaces import Leaf, Spaces, discrete

LEAVES = (Leaf("obs", "float32", (3,)), Leaf("item", "int64", (), (4,)))
MASK = Leaf("allowed", "int8", (2,), mask=True)
SPACES = Spaces((*LEAVES, MASK), discrete(2))


class Wide(nn.Module):
    def __init__(self, units: Any = 5, outputs: int = 5) -> None:
        super().__init__()
        self.units = units
        self.layer = nn.Linear(3, outputs)  # drawn by torch: the seed must decide it all the same
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, obs: dict[str, Tensor]) -> Any:
        if self.training:
            self.seen += len(obs["obs"])
        return self.layer(obs["obs"]) + obs["item"].unsqueeze(-1)


class Gives(Wide):
    def __init__(self, answer: Callable[[Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.answer = answer
        self.inner = nn.ModuleDict(layers)

    def forward(self, obs: dict[str, Tensor]) -> Any:
        return self.answer(obs["obs"])


class Narrow(Wide):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, obs: dict[str, Tensor]) -> Any:
        hidden = super().forward(obs)
        return hidden[:, :-1] if len(hidden) == self.rows else hidden


class Squared(Wide):
    """What backward needs is written over."""

    def forward(self, obs: dict[str, Tensor]) -> Any:
        hidden = self.layer(obs["obs"]).sigmoid()
        return hidden.add_(1)


class Frozen(Wide):
    """No gradient, and none wanted; dice that are never thrown."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.rest = nn.Sequential(nn.Dropout(0.0), nn.InstanceNorm1d(5))


class Lazy(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(5)


class Picky(Wide):
    """Good for zeros."""

    def forward(self, obs: dict[str, Tensor]) -> Any:
        if obs["obs"].any():
            raise RuntimeError("nobody told me\nof these")
        return super().forward(obs)


calls: list[tuple[Any, ...]] = []


def make(leaves: tuple[Leaf, ...], rng: torch.Generator, *, units: int = 5) -> Wide:
    calls.append((leaves, rng))
    return Wide(units, units)


@pytest.fixture(autouse=True)
def module() -> Iterator[ModuleType]:
    """A module of the user's, by name."""
    here = ModuleType("my_encoders")
    here.__dict__.update(make=make)
    sys.modules["my_encoders"] = here
    calls.clear()
    yield here
    del sys.modules["my_encoders"]


def model_of(**settings: Any) -> Model:
    return build(ModelConfig(**{"kind": "my_encoders:make", **settings}), SPACES, seed=0)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_it_is_called_with_what_it_sees(core: str) -> None:
    model = model_of(kwargs={"units": 7}, separate=False, core=core, core_units=3)
    assert [leaves for leaves, _ in calls] == [LEAVES]
    assert isinstance(calls[0][1], torch.Generator)
    assert isinstance(model.encoder, Wide) and model.encoder.units == 7
    assert model.encoder.training and not model.encoder.seen
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.convolutional is False
    obs = {
        "obs": torch.randn(4, 6, 3),
        "item": torch.zeros(4, 6, dtype=torch.int64),
        "allowed": torch.ones(4, 6, 2, dtype=torch.int8),
    }
    output = model(obs)
    assert output.params.shape == (4, 6, 2) and output.value.shape == (4, 6)
    with precision.autocast("cpu", "bfloat16", model):
        assert model(obs).params.dtype == torch.float32


def test_two_towers_are_two_calls() -> None:
    model = model_of(separate=True)
    assert len(calls) == 2 and model.encoder is not model.value_encoder


def test_the_seed_decides_its_weights() -> None:
    first = model_of().state_dict()
    torch.rand(3)
    assert all(torch.equal(value, first[name]) for name, value in model_of().state_dict().items())


def test_one_module_for_both_is_refused(module: ModuleType) -> None:
    one = Wide()
    module.__dict__["make"] = lambda leaves, rng: one  # noqa: ARG005
    with pytest.raises(ValueError, match=r"made the same module twice; .* model\.separate = false"):
        model_of()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: "no", "made a str, which is no torch.nn.Module"),
        (lambda: nn.Linear(3, 5), "needs an attribute units, .* a whole number from 1 up"),
        (lambda: Wide(units=0), "needs an attribute units"),
        (lambda: Wide(units=True), "needs an attribute units"),
        (lambda: Wide(units=8), r"gives float32\[2, 5\] for 2 rows; .* must give float32\[2, 8\]"),
        (lambda: Gives(lambda x: x[:1].repeat(1, 2)[:, :5]), r"gives float32\[1, 5\] for 2 rows"),
        (lambda: Gives(lambda x: x.repeat(1, 2)[:, :5].long()), r"gives int64\[2, 5\]"),
        (lambda: Gives(lambda x: (x, x)), "gives a tuple; it must give a tensor"),
        (lambda: Gives(lambda x: x @ x), r"cannot read rows of zeros \(obs \[2, 3\], item \[2\]\)"),
        (lambda: Narrow(1), r"gives float32\[1, 4\] for 1 rows; .* float32\[1, 5\]"),
        (lambda: Narrow(7), r"gives float32\[7, 4\] for 7 rows; .* float32\[7, 5\]"),
        (
            lambda: Gives(lambda x: x.repeat(1, 2)[:, :5]),
            r"a parameter that forward does not use, layer\.weight; use it",
        ),
        (
            lambda: Gives(len, thrown=nn.Dropout(0.1)),
            r"has a Dropout \(inner\.thrown\), which acts differently .*; leave dropout out",
        ),
        (
            lambda: Gives(len, one=nn.LSTM(3, 5, 2, dropout=0.5)),
            r"has a LSTM \(inner\.one\), which",
        ),
        (
            lambda: Gives(len, norm=nn.BatchNorm1d(5)),
            r"has a BatchNorm1d \(inner\.norm\), which acts .*; use nn\.LayerNorm or nn\.GroupNorm",
        ),
        (
            lambda: Gives(len, norm=nn.InstanceNorm2d(5, track_running_stats=True)),
            r"has a InstanceNorm2d \(inner\.norm\)",
        ),
        (lambda: Squared(), r"cannot be trained on rows of zeros: RuntimeError: "),
        (lambda: 1 / 0, "cannot be made: ZeroDivisionError: division by zero"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    made: Callable[[], Any], words: str, module: ModuleType
) -> None:
    module.__dict__["make"] = lambda leaves, rng: made()  # noqa: ARG005
    with pytest.raises(ValueError, match=words) as caught:
        model_of()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith('model.kind = "my_encoders:make" ')


@pytest.mark.parametrize("made", [Frozen, Lazy, lambda: Wide().train(False)])
def test_what_is_out_of_the_ordinary_and_good(made: Callable[[], Wide], module: ModuleType) -> None:
    moods = []

    def factory(leaves: Any, rng: Any) -> Wide:  # noqa: ARG001
        one = made()
        moods.append(one.training)
        return one

    module.__dict__["make"] = factory
    with torch.no_grad():  # as a sampler may build it
        model = model_of(separate=False)
    assert isinstance(model.encoder, Wide)
    assert [model.encoder.training] == moods


def test_a_failure_in_training_is_the_encoder_s_own(module: ModuleType) -> None:
    kind = "my_encoders:make"
    module.__dict__["make"] = lambda leaves, rng: Picky()  # noqa: ARG005
    model = model_of()
    obs = {
        "obs": torch.ones(6, 3),
        "item": torch.zeros(6, dtype=torch.int64),
        "allowed": torch.ones(6, 2, dtype=torch.int8),
    }
    for call in (model, model.policy):
        with pytest.raises(RuntimeError) as caught:
            call(obs)
        said = custom.blame_users_code(kind, caught.value)
        assert said.startswith(f'model.kind = "{kind}" failed, mend the encoder: RuntimeError: nob')
        assert "\n" not in said
        assert custom.blame_users_code("mlp", caught.value) == ""
    with pytest.raises(RuntimeError) as elsewhere:
        torch.ones(2) @ torch.ones(3)
    assert custom.blame_users_code(kind, elsewhere.value) == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "no_such_thing:make"}, "No module named 'no_such_thing'"),
        ({"kind": "my_encoders:other"}, "has no attribute 'other'"),
        ({"kwargs": {"depth": 3}}, r"'depth'; it is called with \(leaves, rng, \*\*model.kwargs\)"),
        ({"obs_scale": (1.0,)}, 'obs_scale is not for model.kind = "my_encoders:make"'),
        ({"kind": "mlp", "kwargs": {"x": 1}}, r"model\.kwargs are for a module:factory"),
        (
            {"kind": "cnn"},
            '"cnn" is not available; .* mlp, nature, resnet, grid, or to module:factory',
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        model_of(**settings)
    assert "\n" not in str(caught.value)
