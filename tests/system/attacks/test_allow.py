"""A broker's run names code that this machine did not allow."""

from pathlib import Path

import pytest

from headrace.launch.process.runtime import YOUR_INPUT as BAD
from tests.system.conftest import Place, until

MARKS = """
import pathlib
import gymnasium

pathlib.Path(__file__).with_suffix(".imported").touch()

def make():
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.parametrize("role", ["actor", "evaluate", "node"])
def test_it_is_not_even_imported(place: Place, role: str) -> None:
    place.toml("marks.py", MARKS)
    mark = place.folder / "marks.imported"
    env = {"PYTHONPATH": str(place.folder)}
    text = Path(place.run).read_text()
    place.run = place.toml("named.toml", text.replace('id = "CartPole-v1"', 'id = "marks:make"'))
    broker = place.broker()
    refused = place.headrace(role, "--broker", place.ipc, env=env)
    assert refused.ends() == BAD, refused.text()
    assert "env.id = 'marks:make'" in refused.text() and "--allow marks" in refused.text()
    assert "Traceback" not in refused.text()
    assert not mark.exists()
    if role == "actor":
        allowed = place.actor("--allow", "marks", "--name", "knows", env=env)
        until(mark.exists, "it is imported")
        allowed.kill()
    broker.term()
