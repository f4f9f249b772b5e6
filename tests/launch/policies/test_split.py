"""A run file of several policies becomes a run file for each."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config import run_file
from headrace.launch.config.run_file import ConfigError
from headrace.launch.policies.split import has_policies, split

FILE = """
[run]
name = "hunt"

[env]
id = "own:Hunt"

[model]
hidden = [64]

[policies.wolf]
agents = ["wolf_*"]
unroll.envs = 6

[policies.sheep]
agents = ["sheep", "lamb"]
model.hidden = [8, 8]

[policies.sheep.algorithm]
name = "impala"
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes hunt.toml and gives its path."""

    def _write(text: str = FILE) -> str:
        path = tmp_path / "hunt.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return _write


@pytest.mark.parametrize(
    ("text", "sets", "seeds"),
    [
        (FILE, [], [1, 2]),
        (FILE.replace('"hunt"\n', '"hunt"\nseed = 4\n', 1), [], [4, 5]),
        (FILE, ["run.seed=7"], [7, 8]),
        (FILE, ["run.seed=7", "policies.sheep.run.seed=7"], [7, 7]),
        (FILE + "\n[policies.sheep.run]\nseed = 9\n", [], [1, 9]),
    ],
)
def test_no_two_policies_begin_alike_unless_asked_to(
    write: Any, text: str, sets: list[str], seeds: list[int]
) -> None:
    policies = split(write(text), sets)
    runs = [run_file.build(one.tables, one.sets, source=one.name) for one in policies]
    assert [run.run.seed for run in runs] == seeds


def test_each_policy_has_a_run_of_its_own(write: Any) -> None:
    wolf, sheep = split(
        write(),
        ["learner.lr=0.01", "policies.sheep.unroll.length=5", 'policies.wolf.agents=["wolf_1"]'],
    )
    assert (wolf.name, sheep.name) == ("wolf", "sheep")
    run = run_file.build(wolf.tables, wolf.sets, source="wolf")
    assert (run.run.name, run.env.agents, run.env.id) == ("hunt-wolf", ("wolf_1",), "own:Hunt")
    assert (run.model.hidden, run.unroll.envs, run.learner.lr) == ((64,), 6, 0.01)
    other = run_file.build(sheep.tables, sheep.sets, source="sheep")
    assert (other.run.name, other.env.agents) == ("hunt-sheep", ("sheep", "lamb"))
    assert (other.model.hidden, other.algorithm.name) == ((8, 8), "impala")
    assert (other.unroll.length, run.unroll.length, other.learner.lr) == (5, 32, 0.01)
    assert other.unroll.envs == 2, "the default is that of its own algorithm"


def test_agents_that_nobody_trains_are_others_to_the_rest(write: Any) -> None:
    more = '\n[policies.dog]\nagents = ["dog", "d_*"]\nplays = "random"\n'
    found = split(write(FILE + more), [])
    assert [one.name for one in found] == ["wolf", "sheep"]
    for one in found:
        run = run_file.build(one.tables, one.sets, source=one.name)
        assert run.env.others == {"dog": "random", "d_*": "random"}


def test_only_a_file_with_policies_has_them(write: Any) -> None:
    assert has_policies(write()) and has_policies("signals")
    assert not has_policies("cartpole")


@pytest.mark.parametrize(
    ("text", "sets", "words"),
    [
        ("policies = 3", [], "[policies] holds no table"),
        ("[policies.wolf]", [], "policies.wolf.agents must name the agents"),
        ("[policies.wolf]\nagents = []", [], "policies.wolf.agents must name the agents"),
        ("[policies]\nwolf = 3", [], "policies.wolf must be a table"),
        ('[policies."a b"]\nagents = ["a"]', [], "policies.a b must be a table, and its name"),
        ('[policies.wolf]\nagents = ["a"]\nspeed = 3', [], "policies.wolf.speed is no section"),
        ('[policies.wolf]\nagents = ["a"]\nspeed.x = 3', [], "policies.wolf.speed is no section"),
        ('[policies.a]\nagents = ["a"]\nplays = "random"', [], "none is left to train"),
        (
            '[policies.a]\nagents = ["a"]\nplays = "random"\nunroll.length = 3',
            [],
            "policies.a.unroll: nothing of 'random' can be set here",
        ),
        (FILE, ["policies.cow.learner.lr=1"], "policies.cow: there are the policies wolf, sheep"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    write: Any, text: str, sets: list[str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        split(write(text), sets)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_other_commands_say_what_to_name(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"\[policies\] makes several runs of it"):
        run_file.load(write())
