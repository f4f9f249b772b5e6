"""The processes that `headrace train` starts: each role's work in a fork, and the arguments that
start it again."""

import errno
import importlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.launch.config import allowed_code, keyring, run_file
from headrace.launch.config.starts import Start
from headrace.launch.local import run_folder
from headrace.launch.local.children import Plan
from headrace.launch.roles import broker
from headrace.launch.roles.options import Address, LearnerOptions, PeerOptions


@dataclass(frozen=True, slots=True)
class ChildPlans:
    """Plans the processes of one run."""

    start: Start
    brokers: Sequence[str]  # their addresses
    record: bool
    started: float  # when headrace train did, by time.monotonic
    began: float  # the run's clock at 0, by time.monotonic
    web: int | None = None  # where the broker serves its page; None = nowhere
    beside: Sequence[str] = ()  # brokers of policies that play in the same environments
    done: Sequence[Path] = ()  # folders of such that learn no more
    allow: Sequence[str] = ()  # code that their runs name

    @property
    def run(self) -> run_file.Run:
        return self.start.run

    @property
    def out(self) -> Path:
        return self.start.out

    def broker(self, shard: int) -> Plan:
        """Plans one of the run's brokers; the first serves the page."""
        address, name = self.brokers[shard], run_folder.broker_name(shard)
        web = None if shard else self.web
        options = broker.Options(
            address,
            metrics=Address(port=web),
            report=self.out / f"{name}.json",
            ledger=self._ledger,
        )
        again = ["broker", "--run", self._toml, "--bind", address]
        again += ["--report", str(options.report), "--ledger", str(self._ledger)]
        again += [] if web is None else ["--metrics-port", str(web)]
        return Plan(name, lambda: broker.serve(self.run, options), again)

    def learner(self) -> Plan:
        options = self.learner_options

        def role() -> int:
            from headrace.launch.roles import learner

            return learner.learn(self.run, options)

        return Plan("learner", role, learner_again([self]))

    @property
    def learner_options(self) -> LearnerOptions:
        return LearnerOptions(
            broker=",".join(self.brokers),
            out=self.out,
            resume=self.start.resume,
            ledger=self._ledger,
            started=self.started,
            began=self.began,
            final=True,
            record=self.record,
        )

    @property
    def learner_words(self) -> list[str]:
        """Returns the arguments that a learner has for each run that it trains."""
        words = ["--run", self._toml, "--broker", ",".join(self.brokers), "--out", str(self.out)]
        return [*words, "--ledger", str(self._ledger), "--began", str(self.began)]

    def actor(self, index: int) -> Plan:
        at = self.brokers[index % len(self.brokers)]
        options = replace(self._peer("actor", f"actor-{index}", at), ledger=self._ledger)
        seed = actor_seed(self.run.run.seed, index)

        def role() -> int:
            from headrace.launch.roles import sampler

            return sampler.sample(options, seed=seed)

        again = ["actor", "--seed", str(seed + 1000), "--ledger", str(self._ledger)]
        return Plan(options.name, role, [*again, *self._again(options)])

    def node(self, shard: int) -> tuple[str, list[str]]:
        """Plans the node of the samplers that speak with this broker."""
        samplers = len(range(shard, self.run.actor.count, len(self.brokers)))
        options = self._peer("actor", f"node{shard or ''}", self.brokers[shard])
        words = ["node", "--samplers", str(samplers), "--ledger", str(self._ledger)]
        return options.name, [*words, *self._again(options)]

    def evaluator(self) -> Plan:
        options = self._peer("evaluator", "evaluator", self.brokers[0])

        def role() -> int:
            from headrace.launch.roles.evaluation import evaluator

            return evaluator.evaluate(options, out=self.out, beside=self.beside, done=self.done)

        again = ["evaluate", "--out", str(self.out), *self._again(options)]
        again += [word for address in self.beside for word in ("--beside", address)]
        again += [word for folder in self.done for word in ("--done", str(folder))]
        return Plan(options.name, role, again)

    def sink(self, name: str) -> tuple[str, list[str]]:
        return f"log-{name}", ["log", str(self.out), "--to", name, "--follow"]

    def _peer(self, role: str, name: str, address: str) -> PeerOptions:
        """Returns the options of a peer. It does not read the run file, which names the keys of the
        others."""
        key = keyring.path(self.run, role) if self.run.security.curve else None
        allow = (*allowed_code.names(self.run), *self.allow)
        return PeerOptions(address, name, key=key, allow=allow)

    def _again(self, options: PeerOptions) -> list[str]:
        words = ["--broker", options.broker, "--name", options.name]
        words += [] if options.key is None else ["--key", str(options.key)]
        return [*words, *(word for name in options.allow for word in ("--allow", name))]

    @property
    def _toml(self) -> str:
        return str(self.out / "run.toml")

    @property
    def _ledger(self) -> Path:
        return self.out / "ledger"


def import_roles() -> None:
    """Imports what learner, samplers and evaluator share: above all torch, which takes most of a
    second."""
    for module in ("headrace.launch.roles.sampler", "headrace.launch.roles.learner"):
        importlib.import_module(module)


def learner_again(plans: Sequence[ChildPlans]) -> list[str]:
    """Returns the arguments that start the learner of these runs again."""
    words = [word for one in plans for word in one.learner_words]
    words += ["--resume", "--started", str(plans[0].started), "--final"]
    return ["learner", *words, *["--record"] * plans[0].record]


def evaluates(run: run_file.Run, asked: bool | None) -> bool:
    """Tells whether an evaluator plays beside the run. `asked`: whether the user wants one; None =
    nothing was said, so one plays unless it lacks a key."""
    if run.stop.evaluated and asked is False:
        raise run_file.ConfigError(
            f'stop.metric is "{run.stop.metric}", and without an evaluator nobody could say that'
            " the goal is reached; leave out --no-evaluate"
        )
    if asked is None and not run.stop.evaluated:
        return not run.security.curve or keyring.path(run, "evaluator").exists()
    return asked is not False


def web_port(asked: int | None) -> int | None:
    """Returns the port of the page that somebody asked for, a free one for 0; ConfigError where it
    is taken."""
    if asked is None:
        return None
    try:
        if not 0 <= asked < 2**16:
            raise OSError(errno.EINVAL, "a port is between 0 and 65535")
        with socket.create_server(("127.0.0.1", asked)) as free:
            port: int = free.getsockname()[1]
            return port
    except OSError as error:
        raise run_file.ConfigError(
            f"cannot serve the page at 127.0.0.1:{asked}: {error.strerror}; choose another with"
            " --web, 0 takes a free one"
        ) from error


def actor_seed(seed: int, index: int) -> int:
    """Returns a sampler's seed, such that environments of all samplers begin apart: environment i
    of a sampler adds i."""
    return (seed * 1_000_003 + index * 100_003) % 2**31
