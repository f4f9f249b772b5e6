"""The code that a broker's run may name."""

from pathlib import Path
from typing import Any

import pytest

from headrace.launch import cli
from headrace.launch.config import allowed_code, run_file, shared_run
from headrace.launch.config.starts import Start
from headrace.launch.local.child_plans import ChildPlans


def run(**sections: Any) -> run_file.Run:
    """As a broker tells it."""
    shared = shared_run.for_peers(run_file.load("cartpole"))
    for section, keys in sections.items():
        shared[section] = {**shared[section], **keys}
    return shared_run.from_shared(shared)


def wrapped(name: str) -> run_file.Run:
    return run(env={"wrappers": [{"id": name}]})


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's file; the machine's is not looked at."""
    path = tmp_path / "headrace" / "allow"
    path.parent.mkdir()
    monkeypatch.setattr(allowed_code, "files", lambda: (tmp_path / "none", path))
    return path


FREE = {
    "gymnasium's id": run(env={"id": "Acrobot-v1"}),
    "a namespace": run(env={"id": "ALE/Pong-v5"}),
    "EnvPool's": run(env={"id": "envpool:Pong-v5"}),
    "ours": run(env={"id": "headrace/Parts-v0"}),
    "gymnasium's wrapper": wrapped("gymnasium.wrappers:TimeAware"),
    "our networks": run(model={"kind": "nature"}),
    "an address": run(env={"id": "Acrobot-v1", "kwargs": {"server": "tcp://host:5000"}}),
}
# Where it stands, and what allows it.
NAMED = {
    "a program": (run(env={"id": "subprocess:call"}), "env.id = 'subprocess:call'", "subprocess"),
    "what gymnasium imports": (run(env={"id": "evil:Such-v0"}), "env.id = 'evil'", "evil"),
    "what gymnasium imports, spaced": (run(env={"id": "evil:a/b-v0"}), "env.id = 'evil'", "evil"),
    "a wrapper": (wrapped("os:system"), "env.wrappers[0].id = 'os:system'", "os"),
    "an exploration": (run(actor={"explore": "a.b:c"}), "actor.explore = 'a.b:c'", "a.b"),
    "an encoder": (run(model={"kind": "a.b:net"}), "model.kind = 'a.b:net'", "a.b"),
    "our own command": (
        run(env={"id": "headrace.launch.cli:main"}),
        "'headrace.launch.cli:main'",
        "headrace.launch.cli",
    ),
    "our makers": (
        run(env={"id": "headrace.actors.envs.make:_attribute"}),
        "_attribute'",
        "headrace.actors",
    ),
    "our insides": (
        run(env={"id": "headrace.actors.envs.toys.tasks:_Questions"}),
        "_Questions'",
        "headrace.actors.envs",
    ),
    "gymnasium's maker": (run(env={"id": "gymnasium:make"}), "'gymnasium:make'", "gymnasium"),
    "gymnasium's inside": (wrapped("gymnasium.wrappers.common:deepcopy"), "deepcopy'", "gymnasium"),
    "who is played against": (
        run(evaluate={"against": "evil.players:best"}),
        "evaluate.against = 'evil.players:best'",
        "evil.players",
    ),
    "who plays other agents": (
        run(env={"agents": ["wolf"], "others": {"sheep": "evil.players:best"}}),
        "env.others = 'evil.players:best'",
        "evil.players",
    ),
    "who is met in a league": (
        run(league={"others": ["random", "evil.players:best"]}),
        "league.others = 'evil.players:best'",
        "evil.players",
    ),
    "who says who is met": (
        run(league={"pick": "evil.rules:pick"}),
        "league.pick = 'evil.rules:pick'",
        "evil.rules",
    ),
    "who plays whom": (
        run(env={"wrappers": [{"id": "gymnasium.wrappers:Seats", "rule": "evil.rules:who"}]}),
        "env.wrappers[0].rule = 'evil.rules:who'",
        "evil.rules",
    ),
    "of the older gym": (
        run(env={"id": "GymV26Environment-v0", "kwargs": {"env_id": "evil:Such-v0"}}),
        "env.kwargs.env_id = 'evil'",
        "evil",
    ),
}


@pytest.mark.parametrize("case", FREE)
def test_what_every_machine_allows(case: str) -> None:
    allowed_code.check(FREE[case], ())
    assert allowed_code.names(FREE[case]) == ()


@pytest.mark.parametrize("case", NAMED)
def test_what_must_be_allowed(case: str) -> None:
    told, words, prefix = NAMED[case]
    with pytest.raises(run_file.ConfigError) as caught:
        allowed_code.check(told, ("other", "evi", "subprocess.run", "a.b.c", "a.b:other"))
    said = str(caught.value)
    assert words in said and "\n" not in said
    assert f"--allow {prefix}" in said
    allowed_code.check(told, (prefix,))


@pytest.mark.parametrize("prefix", ["robots", "robots.arm", "robots.arm:make"])
def test_a_prefix_is_a_package_a_module_or_one_factory(prefix: str) -> None:
    allowed_code.check(run(env={"id": "robots.arm:make"}), (prefix,))
    for other in ("robots_evil:make", "robots.armed:make" if "." in prefix else "robot:make"):
        with pytest.raises(run_file.ConfigError):
            allowed_code.check(run(env={"id": other}), (prefix,))


def test_a_file_lists_them(listed: Path) -> None:
    assert allowed_code.allowed(["given"]) == ("given",)
    listed.write_text("# ours\nrobots\n\n  robots.arm:make  # this one\n")
    assert allowed_code.allowed(["given"]) == ("given", "robots", "robots.arm:make")


@pytest.mark.parametrize("word", ["two words", "", "a:b:c", "a:", ":b"])
def test_what_is_no_prefix_is_said_before_anything_starts(
    word: str, listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("actor", "node", "evaluate"):
        assert cli.main([role, "--broker", "ipc:///tmp/none", "--allow", word]) == 2
        assert f"--allow {word}" in capsys.readouterr().err
    if word:
        listed.write_text(f"fine\n{word}\n")
        with pytest.raises(run_file.ConfigError, match="line 2"):
            allowed_code.allowed([])


def test_a_file_that_cannot_be_read_is_no_permission(listed: Path) -> None:
    listed.mkdir()
    with pytest.raises(run_file.ConfigError, match="cannot be read"):
        allowed_code.allowed([])


def test_a_run_of_this_machine_is_not_restricted() -> None:
    """Its own processes are told what it names, whatever that is."""
    for told, _, _ in NAMED.values():
        allowed_code.check(told, allowed_code.allowed(allowed_code.names(told)))
    own = run(env={"id": "my-own.envs:make"}, model={"kind": "nets:make"})
    start = Start(own, Path("out"), Path("own.toml"), ())
    plans = ChildPlans(start, "ipc:///x", record=False, started=0.0, began=0.0)
    for plan in (plans.actor(0), plans.evaluator()):
        assert plan.again[-4:] == ["--allow", "my-own.envs:make", "--allow", "nets:make"]
