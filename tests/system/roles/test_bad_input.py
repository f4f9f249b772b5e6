"""What users get wrong: one clear line each, the right exit status, nothing left."""

import re
import socket
from pathlib import Path

import pytest
import zmq

from headrace.broker.protocol import messages, releases
from tests.system.conftest import RUN, Place, Process

ENVS = {"PYTHONPATH": str(Path(__file__).parent)}
BAD = 2


def error_lines(process: Process) -> list[str]:
    """What it said above the level of news."""
    return [
        line
        for line in process.lines()
        if " INFO " not in line and not line.lstrip().startswith("unrolls:")
    ]


def refuses(process: Process, *words: str, timeout_s: float = 60.0) -> None:
    """Ends with the status of wrong input, and one line with these words says why."""
    assert process.ends(timeout_s=timeout_s) == BAD, process.text()
    assert "Traceback" not in process.text(), process.text()
    lines = error_lines(process)
    assert len(lines) == 1, process.text()
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[learner\nlr = 1", ("run.toml", "line 1")),
        ("[learner]\nlrr = 1", ("learner.lrr", "did you mean lr?")),
        ("[pacing]\nbatch_unrolls = 'many'", ("pacing.batch_unrolls", "integer")),
        ("[unroll]\nlength = -4", ("unroll.length is -4", ">= 1")),
        ("[env]\nid = 'CartPole-v77'", ("CartPole-v77",)),
        ("[env]\nid = 'no_module:thing'", ("no_module",)),
        ("[learner]\ndevice = 'tpu'", ("learner.device", "tpu")),
        ("[learner]\ndevice = 'cuda'", ("learner.device", "no GPU")),
    ],
)
def test_a_wrong_run(place: Place, text: str, words: tuple[str, ...]) -> None:
    place.run = place.toml("run.toml", text)
    # A sampler may find the same fault at the same time: only the first line is looked at.
    train = place.train("--actors", "1", "--quiet")
    assert train.ends() == BAD, train.text()
    assert "Traceback" not in train.text(), train.text()
    for word in words:
        assert word in train.lines()[0], train.text()
    place.nothing_is_left()


def test_each_role_refuses_a_wrong_run_in_one_line(place: Place) -> None:
    place.run = place.toml("run.toml", "[learner]\nlrr = 1")
    for process in (place.broker(), place.learner(), place.train()):
        refuses(process, "did you mean lr?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "cartpol"), "shipped runs"),
        (("train", "cartpole", "--actors", "0"), "actor.count is 0"),
        (("train", "cartpole", "--actors", "few"), "--actors"),
        (("train", "cartpole", "--stop-steps", "-5"), "stop.steps is -5"),
        (("train", "cartpole", "--stop-seconds", "-5"), "stop.seconds is -5"),
        (("train", "cartpole", "--seed", "-1"), "run.seed is -1"),
        (("train", "cartpole", "--out", "/dev/null/run"), "--out"),
        (("broker", "--run", "cartpole", "--bind", "5755"), "tcp://host:port"),
        (("broker", "--run", "cartpole", "--bind", "tcp://127.0.0.1:99999"), "tcp://host:port"),
        (("learner", "--run", "cartpole", "--broker", "localhost"), "tcp://host:port"),
        (("actor", "--broker", "udp://localhost:5755"), "tcp://host:port"),
        (("actor",), "--broker"),
        (("--log-level", "info"), "COMMAND"),
    ],
)
def test_a_wrong_command_line(place: Place, arguments: tuple[str, ...], words: str) -> None:
    refuses(place.headrace(*arguments), words)


def test_a_port_in_use(place: Place, tcp: str) -> None:
    first = place.broker(bind=tcp)
    first.says("run small at")
    refuses(place.broker(bind=tcp), tcp, "in use", "--bind")
    assert first.term() == 0


def test_an_ipc_path_in_use(place: Place) -> None:
    first = place.broker()
    first.says("run small at")
    refuses(place.broker(), place.ipc, "in use", "--bind")
    learner, actor = place.learner("--set", "stop.steps=500"), place.actor()
    assert learner.ends() == 0, learner.text()
    assert actor.ends() == 0, actor.text()
    assert first.term() == 0


def test_an_ipc_path_that_a_killed_broker_left_is_free(place: Place) -> None:
    first = place.broker()
    first.says("run small at")
    first.kill()
    second = place.broker()
    second.says("run small at")
    assert second.term() == 0


def test_an_ipc_path_in_no_folder(place: Place) -> None:
    refuses(place.broker(bind=f"ipc://{place.folder}/none/b"), "none/b", "--bind")


@pytest.mark.parametrize("role", ["broker", "learner", "actor"])
def test_a_metrics_port_in_use(place: Place, role: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        broker = place.broker()
        broker.says("run small at")
        other = f"ipc://{place.folder}/other"
        process = {
            "broker": lambda: place.broker("--metrics-port", port, bind=other),
            "learner": lambda: place.learner("--metrics-port", port),
            "actor": lambda: place.actor("--metrics-port", port),
        }[role]()
        refuses(process, port, "in use", "--metrics-port")


def test_the_broker_of_another_run(place: Place) -> None:
    broker = place.broker()
    broker.says("run small at")
    refuses(place.learner("--set", "algorithm.gamma=0.5"), "algorithm.gamma: 0.99 there, 0.5 here")
    refuses(place.learner("--set", "run.name=large"), "'small'", "'large'")
    assert broker.term() == 0


def test_no_broker_yet(place: Place, tcp: str) -> None:
    learner = place.learner("--set", "stop.steps=500", broker=tcp)
    actor = place.actor(broker=tcp)
    for process in (learner, actor):
        process.says(f"no broker answers at {tcp} after 5 s; still trying", timeout_s=20)
        assert process.popen.poll() is None
    broker = place.broker(bind=tcp)
    assert learner.ends() == 0, learner.text()
    assert actor.ends() == 0, actor.text()
    for process in (learner, actor):
        assert process.text().count("no broker answers") == 1
    assert broker.term() == 0


def ends_in_one_line(train: Process, place: Place, *words: str, at: str = "") -> None:
    """The first line says what is wrong; whoever else finds it adds no more than a line. `at`: and
    below it stands the place in the user's own code."""
    assert train.ends() == BAD, train.text()
    assert "Warning" not in train.text(), train.text()
    said = [line for line in train.lines() if " ERROR " in line]
    # The sampler's, perhaps the learner's, and that of the process that started them.
    assert 1 <= len(said) <= 3, train.text()
    assert train.lines()[0] == said[0]
    for word in words:
        assert word in said[0], train.text()
    if at:
        _, start, first, *rest = train.lines()
        assert start == "Traceback (most recent call last):", train.text()
        assert at in "".join((first, *rest[: len(rest) // 2 + 1])), train.text()
        assert not re.search(r'File ".*/(actors|learner|launch)/', first), first
    else:
        assert len(train.lines()) == len(said), train.text()
    place.nothing_is_left()


@pytest.mark.parametrize(
    ("env", "words", "at"),
    [
        ("RaisesInReset", ("failed in reset", "the simulator has no licence", "seed"), "in reset"),
        ("OutsideItsSpace", ("failed in reset", "obs: 5.0 at [0]", "-1.0 to 1.0", "seed"), ""),
        ("Grows", ("changes its spaces", "[1]", "[2]"), ""),
        ("unsupported_observation", ("Text(", "not supported"), ""),
        ("unsupported_action", ("action: it is Text(", "not supported"), ""),
        ("no_environment", ("str", "no gymnasium.Env"), ""),
        ("fails_to_be_made", ("cannot be made", "no ROM here"), "in fails_to_be_made"),
        ("missing", ("missing",), ""),
    ],
)
def test_a_broken_environment(place: Place, env: str, words: tuple[str, ...], at: str) -> None:
    train = place.train(
        "--actors",
        "1",
        "--set",
        f"env.id=broken_envs:{env}",
        "--quiet",
        "--set",
        "actor.stepping=inline",
        env=ENVS,
    )
    ends_in_one_line(train, place, *words, at=at)


@pytest.mark.parametrize("stepping", ["auto", "threads", "processes"])
def test_a_first_reset_that_fails_is_one_line_in_all_ways(place: Place, stepping: str) -> None:
    train = place.train(
        "--actors",
        "1",
        "--set",
        "env.id=broken_envs:RaisesInReset",
        "--quiet",
        "--set",
        f"actor.stepping={stepping}",
        env=ENVS,
    )
    words = ("RaisesInReset failed", "the simulator has no licence")
    ends_in_one_line(train, place, *words, at="in reset")


@pytest.mark.parametrize(
    ("stepping", "env", "where", "words"),
    [
        ("inline", "RaisesInStep", "step", "RuntimeError: the wheel came off"),
        ("threads", "RaisesInStep", "step", "RuntimeError: the wheel came off"),
        ("processes", "RaisesInStep", "step", "RuntimeError: the wheel came off"),
        ("inline", "WrongShapeInStep", "step", "float32[3] was returned, the space says"),
        ("inline", "WrongDtypeInStep", "step", "complex64[2] was returned, the space says"),
        ("inline", "ChangesItsSpaces", "reset", "a reset changed its spaces from"),
        ("inline", "NonFiniteReward", "values", "reward is not finite"),
        ("inline", "NonFiniteObservation", "values", "obs is not finite"),
    ],
)
def test_an_environment_that_fails_again_and_again(
    place: Place, stepping: str, env: str, where: str, words: str
) -> None:
    """It is forgiven as often as the budget says."""
    train = place.train(
        "--actors",
        "1",
        "--set",
        f"env.id=broken_envs:{env}",
        "--quiet",
        "--set",
        f"actor.stepping={stepping}",
        "--set",
        "actor.crashes_per_hour=3",
        env=ENVS,
    )
    assert train.ends() == BAD, train.text()
    assert "Warning" not in train.text(), train.text()
    *said, end, last = [line for line in train.lines() if " ERROR " in line]
    assert "its line above says why" in last
    assert f"broken_envs:{env} failed 4 times within an hour" in end
    assert "more than actor.crashes_per_hour = 3" in end
    for line in (*said, end):
        assert ("environment " if where == "values" else f"{where}, environment ") in line
        assert words in line
    assert len(said) == 4
    assert train.lines()[-2:] == [end, last]
    # The place in the code is shown once, where there is one.
    assert train.text().count("Traceback") == (where != "values"), train.text()
    place.nothing_is_left()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[env]\nid = 'halfway:make'", ("halfway:make", "nobody_has_this")),
        (
            "[env]\nwrappers = [{ max_episode_steps = 5 }]",
            ("env.wrappers[0] has no id", "module:factory"),
        ),
        (
            "[env]\nid = 'broken_envs:Steady'\n[actor]\nstepping = 'vector'",
            ("broken_envs:Steady has no vector class", "set actor.stepping"),
        ),
        (
            "[env]\nid = 'broken_envs:Steady'\nwrappers = [{ id = 'halfway:make' }]",
            ("env.wrappers[0].id = 'halfway:make'", "nobody_has_this"),
        ),
    ],
)
def test_an_environment_that_the_run_names_wrongly(
    place: Place, settings: str, words: tuple[str, ...]
) -> None:
    place.toml("halfway.py", "import nobody_has_this\n\nmake = nobody_has_this.make\n")
    place.run = place.toml("run.toml", settings)
    train = place.train("--actors", "1", "--quiet", env=ENVS)
    at = "import nobody_has_this" if "nobody_has_this" in words else ""
    ends_in_one_line(train, place, *words, at=at)


def test_a_pool_in_groups_of_many(place: Place) -> None:
    pytest.importorskip("envpool")
    train = place.train(
        "--actors", "1", "--quiet", "--set", "env.id=envpool:CartPole-v1", "--set", "unroll.envs=2"
    )
    ends_in_one_line(train, place, "envpool:CartPole-v1", "set unroll.envs = 1")


def test_more_workers_than_the_system_gives_descriptors(place: Place) -> None:
    few = (
        "import resource, sys; from headrace.launch.cli import main;"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); sys.exit(main())"
    )
    train = place.python(
        "-c",
        few,
        "train",
        place.run,
        "--out",
        str(place.out),
        "--actors",
        "1",
        "--quiet",
        "--set",
        "actor.stepping=processes",
        "--set",
        "actor.groups=200",
    )
    ends_in_one_line(train, place, "200 workers need", "the limit here is 100", "ulimit -n")


@pytest.mark.parametrize("first", ["learner", "actor"])
def test_an_environment_whose_spaces_differ_from_the_runs(place: Place, first: str) -> None:
    place.run = place.toml(
        "run.toml", RUN.replace("CartPole-v1", "broken_envs:depends_on_the_machine")
    )
    broker = place.broker()
    broker.says("run small at")

    def learner() -> Process:
        return place.headrace(
            "learner",
            "--run",
            place.run,
            "--broker",
            place.ipc,
            "--out",
            str(place.out),
            "--ledger",
            str(place.ledger),
            env=ENVS,
        )

    def other() -> Process:
        return place.actor("--name", "other", "--allow", "broken_envs", env={**ENVS, "WIDER": "1"})

    if first == "learner":
        training = learner()
        broker.says("learner .* joins")
        refused = other()
    else:
        refused = other()
        broker.says("other joins")
        training = learner()
    refuses(refused, "float32", "[2]", "[3]")
    # The run goes on with samplers that fit.
    fits = place.actor("--allow", "broken_envs:depends_on_the_machine", env=ENVS)
    place.trains(20)
    for process in (fits, training, broker):
        assert process.term() == 0, process.text()


def test_the_checkpoint_of_another_run(place: Place) -> None:
    assert place.train("--stop-steps", "500").ends() == 0
    before = (place.out / "run.toml").read_text(), place.summary()
    for setting, words in (
        ("model.hidden=[8]", "model.hidden: [16] there, [8] here"),
        ("env.id=Acrobot-v1", 'env.id: "CartPole-v1" there, "Acrobot-v1" here'),
        ("algorithm.name=appo", 'algorithm.name: "impala" there, "appo" here'),
        ("learner.optimiser=rmsprop", 'learner.optimiser: "adam" there, "rmsprop" here'),
    ):
        train = place.train("--resume", "--quiet", "--set", setting)
        assert train.ends() == BAD, train.text()
        assert "Traceback" not in train.text()
        assert words in train.lines()[0]
        # Nothing was lost by trying.
        assert ((place.out / "run.toml").read_text(), place.summary()) == before
        learner = place.learner("--resume", "--set", setting)
        refuses(learner, words)
    place.nothing_is_left()


def test_a_damaged_checkpoint_is_passed_over_and_none_left_is_bad_input(place: Place) -> None:
    assert place.train("--stop-steps", "6000", "--set", "checkpoint.every_s=0.1").ends() == 0
    *_, older, newest = place.checkpoints()
    damage(newest)
    train = place.train("--stop-steps", "7000", "--resume")
    assert train.ends() == 0, train.text()
    assert str(newest) in train.text()
    assert "continues from" not in train.text() or str(older) in train.text()
    for checkpoint in place.checkpoints():
        cut(checkpoint)
    learner = place.learner("--resume", "--set", "stop.steps=9000")
    assert learner.ends() == BAD
    assert "Traceback" not in learner.text()
    assert "move the folder away" in learner.text()


def damage(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 0x10
    file.write_bytes(body)


def cut(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


# ---- another release ---------------------------------------------------------------------------


TOO_NEW, TOO_OLD = releases.PROTOCOL + 1, releases.OLDEST - 1


def test_a_peer_of_another_release_is_told_so(place: Place) -> None:
    """In its own protocol, which it understands: Refuse is the same in all."""
    broker = place.broker()
    broker.says("run small at")
    told = {}
    with zmq.Context() as context:
        for protocol in (TOO_OLD, TOO_NEW):
            with context.socket(zmq.DEALER) as peer:
                peer.linger = 0
                peer.connect(place.ipc)
                hello = messages.encode(messages.Hello("actor", "other", 7))
                peer.send_multipart(releases.spoken(hello, protocol))
                assert peer.poll(10_000)
                answer = peer.recv_multipart()
                assert answer[0][2] == protocol
                message, _ = messages.decode(releases.spoken(answer, releases.PROTOCOL))
                assert isinstance(message, messages.Refuse)
                assert message.code == messages.Refusal.PROTOCOL
                told[protocol] = message.text
    assert f"you speak {TOO_OLD}: upgrade this peer" in told[TOO_OLD]
    assert f"you speak {TOO_NEW}: upgrade the broker first" in told[TOO_NEW]
    assert broker.term() == 0


@pytest.mark.parametrize("role", ["learner", "actor"])
def test_a_broker_of_another_release_ends_a_role(place: Place, role: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
        broker.linger = 0
        broker.bind(place.ipc)
        process = place.learner() if role == "learner" else place.actor()
        assert broker.poll(30_000)
        route = broker.recv_multipart()[0]
        refuse = messages.encode(messages.Refuse(messages.Refusal.PROTOCOL, "in words of tomorrow"))
        broker.send_multipart([route, *releases.spoken(refuse, TOO_NEW)])
        refuses(process, f"protocol {TOO_NEW}", "upgrade the older side", timeout_s=20)
