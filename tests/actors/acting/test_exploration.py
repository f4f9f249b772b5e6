"""Exploration of the user's own: what samplers draw by, and every mistake in it is one line."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.acting.policy import Policy
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.models.distribution import FORBIDDEN, distribution_of
from headrace.learner.models.named_code import OwnCodeError
from headrace.learner.spaces import Action, Leaf, Part, Spaces
from tests.actors.acting.test_policy import CONFIG, SPACES, blob, trained

ROWS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


@pytest.fixture
def exploring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Policy]:
    def made(function: Any, spaces: Spaces = SPACES, config: ModelConfig = CONFIG) -> Policy:
        module = ModuleType("of_theirs")
        module.explore = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "of_theirs", module)
        return Policy(config, spaces, seed=3, explore="of_theirs:explore")

    return made


def params_of(model: Any, rows: Any = ROWS) -> Any:
    with torch.no_grad():
        return model.policy({"obs": torch.from_numpy(rows)})[0].numpy()


def test_actions_are_drawn_by_what_it_makes_and_say_how_likely_that_was(exploring: Any) -> None:
    seen = []

    def flatter(params: Any, version: int) -> Any:
        seen.append((params.shape, params.dtype, version))
        params *= 0.25  # its own copy
        return params

    policy, model = exploring(flatter), trained(1)
    policy.load(blob(model, 7))
    actions, logp, _ = policy.act({"obs": ROWS})
    assert seen == [((64, 3), np.float32, 7)]
    changed = torch.log_softmax(torch.from_numpy(params_of(model)).double() * 0.25, -1).numpy()
    np.testing.assert_allclose(logp, changed[np.arange(64), actions], atol=1e-5)


def test_the_likeliest_action_is_the_policy_s(exploring: Any) -> None:
    policy, model = exploring(lambda params, _: -params), trained(1)
    policy.load(blob(model))
    actions, _, _ = policy.act({"obs": ROWS}, greedy=True)
    np.testing.assert_array_equal(actions, params_of(model).argmax(axis=1))


def test_numbers_of_an_action_have_the_density_that_they_were_drawn_with(exploring: Any) -> None:
    box = Action((Part((), "float32", (2,), low=(-1.0,) * 2, high=(1.0,) * 2),))
    spaces, config = Spaces((Leaf("obs", "<f4", (4,)),), box), ModelConfig(hidden=(8,))

    def wider(params: Any, _: int) -> Any:
        params[:, 2:] += 0.5
        return params

    policy, model = exploring(wider, spaces, config), build(config, spaces, seed=1)
    policy.load(blob(model))
    actions, logp, _ = policy.act({"obs": ROWS})
    changed = torch.from_numpy(wider(params_of(model).copy(), 0))
    expected = distribution_of(box).log_prob(changed, torch.from_numpy(actions))
    np.testing.assert_allclose(logp, expected.numpy(), atol=1e-5)


def test_what_a_mask_forbids_stays_forbidden(exploring: Any) -> None:
    spaces = Spaces((Leaf("obs", "<f4", (4,)), Leaf("mask", "|u1", (3,), mask=True)), SPACES.action)
    policy = exploring(lambda params, _: np.zeros_like(params), spaces)
    mask = np.tile(np.array([1, 0, 1], np.uint8), (64, 1))
    actions, logp, _ = policy.act({"obs": ROWS, "mask": mask})
    assert set(actions) == {0, 2}
    np.testing.assert_allclose(logp, np.log(0.5), atol=1e-6)
    assert np.float32(FORBIDDEN) == FORBIDDEN


def test_an_observation_that_is_no_number_is_no_fault_of_it(exploring: Any) -> None:
    policy = exploring(lambda params, _: params * 0.5)
    policy.load(blob(trained(1)))
    rows = ROWS.copy()
    rows[5] = np.nan
    actions, logp, _ = policy.act({"obs": rows})
    assert np.isfinite(logp).all() and len(actions) == 64


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda *_: 1 / 0, "failed, mend it: ZeroDivisionError: division by zero"),
        (lambda params, _: params[:, 1:], r"gives \[64, 2\] for parameters \[64, 3\]"),
        (lambda *_: None, r"gives \[\] for parameters"),
        (lambda params, _: params * np.inf, "makes of parameters what is no number"),
    ],
)
def test_a_mistake_in_it_is_one_line(function: Any, words: str, exploring: Any) -> None:
    policy = exploring(function)
    policy.load(blob(trained(1)))
    with pytest.raises(OwnCodeError, match=words) as raised:
        policy.act({"obs": ROWS})
    assert 'actor.explore = "of_theirs:explore"' in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_name_is_refused_at_once() -> None:
    with pytest.raises(OwnCodeError, match="cannot be imported: ModuleNotFoundError"):
        Policy(CONFIG, SPACES, seed=3, explore="nowhere:explore")


def test_the_page_s_example_plays_any_action_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.read_text().partition("## Exploration of your own")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found
    (tmp_path / "mine_of_the_page.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    explore = importlib.import_module("mine_of_the_page").a_tenth_at_random
    sure = np.array([[50.0, 0.0, -50.0, 0.0]], np.float32)
    chances = np.exp(explore(sure, 1))[0]
    np.testing.assert_allclose(chances, [0.9 + 0.025, 0.025, 0.025, 0.025], atol=1e-6)
