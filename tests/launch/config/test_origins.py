"""Where the values of a run come from."""

from pathlib import Path

import pytest

from headrace.launch import cli
from headrace.launch.config.origins import origins


@pytest.fixture
def bare(tmp_path: Path) -> str:
    path = tmp_path / "bare.toml"
    path.write_text('[env]\nid = "Acrobot-v1"\n[algorithm]\nname = "ppo"\n')
    return str(path)


def test_each_origin(bare: str) -> None:
    found = origins(bare, ["learner.lr=1e-3", "env.kwargs.x=1"], algorithm="ppo")
    assert found["env.id"] == found["algorithm.name"] == "from bare.toml"
    assert found["learner.lr"] == found["env.kwargs"] == "by --set"
    assert found["algorithm.minibatches"] == "default of ppo"
    assert found["algorithm.uses"] == found["stop.steps"] == "default"
    assert found["run.name"] == "name of the file"


def test_headrace_config_says_them(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", bare, "--set", "algorithm.name=appo", "--set", "run.seed=2"]) == 0
    said = capsys.readouterr().out
    assert "\nlr = 0.001  # default of appo; its step size; " in said
    assert '\nname = "appo"  # by --set; the loss; ' in said
    assert '\nid = "Acrobot-v1"  # from bare.toml; ' in said
    assert "\nepochs = 4  # default; ppo: " in said
    assert "\n# steps is not set  # default; limit on agent steps " in said
