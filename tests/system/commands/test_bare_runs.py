"""A run that names only its environment and its algorithm learns."""

import pytest

from tests.system.conftest import Place

RUN = """
[env]
id = "CartPole-v1"

[algorithm]
name = "{algorithm}"

[stop]
return = 150.0
steps = 200_000
"""


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_it_learns(place: Place, algorithm: str) -> None:
    """On the way to 475: by chance it is about 20."""
    place.run = place.toml("bare.toml", RUN.format(algorithm=algorithm))
    train = place.train()
    assert train.ends() == 0, train.text()
    assert "model.kind = auto: the encoder is mlp" in train.text()
    summary = place.summary()
    assert summary["stop_reason"] == "return" and summary["mean_return"] >= 150.0
    place.nothing_is_left()
