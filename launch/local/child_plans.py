"""The processes that `headrace train` starts: each role's work in a fork, and the arguments that
start it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.launch.config import allowed_code, keyring, run_file
from headrace.launch.local.children import Plan
from headrace.launch.roles import broker
from headrace.launch.roles.learner_options import Options


@dataclass(frozen=True, slots=True)
class ChildPlans:
    """Plans the processes of one run, with its broker at one address."""

    run: run_file.Run
    out: Path
    endpoint: str
    resume: bool
    record: bool
    started: float  # when headrace train did, by time.monotonic
    began: float  # the run's clock at 0, by time.monotonic

    def broker(self) -> Plan:
        report, ledger = self.out / "broker.json", self.out / "ledger"

        def role() -> int:
            return broker.serve(
                self.run,
                bind=self.endpoint,
                metrics_host="127.0.0.1",
                metrics_port=None,
                report=report,
                ledger=ledger,
            )

        again = [
            "broker",
            "--run",
            self._toml,
            "--bind",
            self.endpoint,
            "--report",
            str(report),
            "--ledger",
            str(ledger),
        ]
        return Plan("broker", role, again)

    def learner(self) -> Plan:
        ledger = self.out / "ledger"
        options = Options(
            broker=self.endpoint,
            out=self.out,
            resume=self.resume,
            ledger=ledger,
            started=self.started,
            began=self.began,
            final=True,
            record=self.record,
        )

        def role() -> int:
            from headrace.launch.roles import learner

            return learner.guarded(self.run, options)

        again = [
            "learner",
            "--run",
            self._toml,
            "--broker",
            self.endpoint,
            "--out",
            str(self.out),
            "--resume",
            "--ledger",
            str(ledger),
            "--started",
            str(self.started),
            "--began",
            str(self.began),
            "--final",
            *(["--record"] if self.record else []),
        ]
        return Plan("learner", role, again)

    def actor(self, index: int) -> Plan:
        name, ledger = f"actor-{index}", self.out / "ledger"
        seed = actor_seed(self.run.run.seed, index)

        def role() -> int:
            from headrace.launch.roles import sampler as actor

            return actor.guarded(
                self.endpoint,
                name=name,
                seed=seed,
                sets={},
                ledger=ledger,
                metrics_host="127.0.0.1",
                metrics_port=None,
                key=self._key("actor"),
                allow=allowed_code.names(self.run),
            )

        again = [
            "actor",
            "--broker",
            self.endpoint,
            "--name",
            name,
            "--seed",
            str(seed + 1000),
            "--ledger",
            str(ledger),
            *self._key_words("actor"),
            *allowed_code.allow_options(self.run),
        ]
        return Plan(name, role, again)

    def evaluator(self) -> Plan:
        def role() -> int:
            from headrace.launch.roles import evaluator

            return evaluator.guarded(
                self.endpoint,
                name="evaluator",
                out=self.out,
                sets={},
                metrics_host="127.0.0.1",
                metrics_port=None,
                key=self._key("evaluator"),
                allow=allowed_code.names(self.run),
            )

        again = [
            "evaluate",
            "--broker",
            self.endpoint,
            "--name",
            "evaluator",
            "--out",
            str(self.out),
            *self._key_words("evaluator"),
            *allowed_code.allow_options(self.run),
        ]
        return Plan("evaluator", role, again)

    @property
    def _toml(self) -> str:
        return str(self.out / "run.toml")

    def _key(self, role: str) -> Path | None:
        """Returns the key of a role that does not read the run file, which names the keys of the
        others."""
        return keyring.path(self.run, role) if self.run.security.curve else None

    def _key_words(self, role: str) -> Sequence[str]:
        key = self._key(role)
        return [] if key is None else ["--key", str(key)]


def actor_seed(seed: int, index: int) -> int:
    """Returns a sampler's seed, such that environments of all samplers begin apart: environment i
    of a sampler adds i."""
    return (seed * 1_000_003 + index * 100_003) % 2**31
