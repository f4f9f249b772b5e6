"""A run whose value network sees more than its policy, from training to acting without."""

import numpy as np
import pytest

import headrace
from tests.system.commands.test_train import check_books
from tests.system.conftest import Place

# It pays for the sign of a number that is seen; the value also knows what else will be paid.
GUESS = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Guess(gymnasium.Env):
    observation_space = Dict(seen=Box(-1, 1, (1,)), truth=Dict(luck=Box(-9, 9, (1,))))
    action_space = Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action):
        right = action == int(self.shown["seen"][0] > 0)
        paid = float(right) * 0.1 + float(self.shown["truth"]["luck"][0])
        self.steps += 1
        return self._next(), paid, self.steps == 10, False, {}

    def _next(self):
        seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        luck = self.np_random.choice([-0.5, 0.5], 1).astype(np.float32)
        self.shown = {"seen": seen, "truth": {"luck": luck}}
        return self.shown
"""
RUN = """
[run]
name = "guess"

[env]
id = "guess:Guess"
critic = ["truth"]

[unroll]
length = 10
envs = 8

[model]
hidden = [32]

[algorithm]
name = "{algorithm}"
gamma = 0.0

[pacing]
batch_unrolls = 2

[stop]
steps = 40000
"""


@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala"])
def test_it_learns_is_exact_and_acts_without(place: Place, algorithm: str) -> None:
    (place.folder / "guess.py").write_text(GUESS)
    place.run = place.toml("guess.toml", RUN.replace("{algorithm}", algorithm))
    train = place.train("--quiet")
    assert train.ends() == 0, train.text()
    check_books(place)
    # The value knows the luck, the greater part of what is paid; without it nothing explains that.
    assert place.summary()["explained_variance"] > 0.7
    assert place.headrace("play", str(place.out), "--episodes", "5").ends() == 0
    policy = headrace.load_policy(place.out)
    numbers = [-0.9, -0.5, 0.5, 0.9]
    acts = [int(policy.act({"seen": np.array([x], np.float32)})[0]) for x in numbers]
    assert acts == [0, 0, 1, 1]


def test_a_shared_network_is_refused_in_a_line(place: Place) -> None:
    (place.folder / "guess.py").write_text(GUESS)
    place.run = place.toml("guess.toml", RUN.replace("{algorithm}", "appo"))
    train = place.train("--quiet", "--set", "model.separate=false")
    assert train.ends() == 2
    assert "env.critic needs a value network of its own" in train.text()
