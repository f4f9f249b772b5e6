"""The examples of docs/models.md, word for word."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
TABLES = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
(ENCODER,) = re.findall(r"This is `eyes\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)

CATCH = Spaces((Leaf("obs", "uint8", (84, 84)),), discrete(3))
RICH = Spaces(
    (
        Leaf("left", "uint8", (20, 30)),
        Leaf("right", "uint8", (16, 16), stack=2),
        Leaf("speed", "float64", (2,)),
        Leaf("gear", "int64", (), (4,)),
    ),
    Action((Part((), "float32", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),)),
)


@pytest.fixture(autouse=True)
def eyes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "eyes.py").write_text(ENCODER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("eyes", None)


def model_of(table: dict[str, Any], spaces: Spaces) -> Model:
    return build(msgspec.convert(table.get("model", {}), ModelConfig), spaces, seed=0)


def zeros(spaces: Spaces, *lead: int) -> dict[str, torch.Tensor]:
    return {
        leaf.name: torch.zeros(*lead, *leaf.seen, dtype=getattr(torch, leaf.dtype))
        for leaf in spaces.observation
    }


def test_every_model_section_builds() -> None:
    assert [sorted(table) for table in TABLES] == [
        ["algorithm", "env", "learner", "model", "stop", "unroll"],
        ["model"],
        ["model"],
        ["env"],
        ["model"],
    ]
    plain = Spaces((Leaf("obs", "float32", (3,)),), RICH.action)
    for table, spaces in zip(TABLES, (CATCH, CATCH, CATCH, CATCH, plain), strict=True):
        model = model_of(table, spaces)
        assert model.distribution.params == (4 if spaces is plain else 3)


def test_the_encoder_learns_what_an_image_shows() -> None:
    """Left or right half bright: as catching needs it."""
    model = model_of(TABLES[0], CATCH)
    assert type(model.encoder).__name__ == "Eyes" and model.policy_head.in_features == 64
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    obs = zeros(CATCH, 2)
    obs["obs"][0, :, :42] = 255
    obs["obs"][1, :, 42:] = 255
    for _ in range(50):
        loss: Any = torch.nn.functional.cross_entropy(model(obs).params, torch.tensor([0, 2]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert model.policy(obs)[0].argmax(1).tolist() == [0, 2]


@pytest.mark.parametrize(
    "settings",
    [{}, {"core": "gru", "previous": True}, {"normalise_obs": True, "normalise_returns": True}],
)
def test_the_encoder_takes_all_kinds_of_leaves(settings: dict[str, Any]) -> None:
    table = {"model": {"kind": "eyes:Eyes", "kwargs": {"pixels": 4}, **settings}}
    model = model_of(table, RICH)
    obs = zeros(RICH, 5, 3)
    obs["previous.numbers"], obs["previous.reward"] = torch.zeros(5, 3, 2), torch.zeros(5, 3)
    output = model(obs)
    assert output.params.shape == (5, 3, 4) and output.value.shape == (5, 3)
    changed = obs | {"right": obs["right"] + 100}
    assert not torch.allclose(model(changed).value, output.value)
