"""Every key of every section changes something: training, or what a process builds.

A new key without a case fails; so does a key that nothing listens to any more.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.launch.config import run_file
from tests.launch.config import keys_built as built
from tests.launch.config import keys_trained as trained

RUN = """
[unroll]
length = 5
envs = 3

[model]
kind = "mlp"
hidden = [6]
normalise_obs = false
normalise_returns = false

[algorithm]
trace = 1.0
normalise_advantages = false
epochs = 4
minibatches = 4
kl_stop = 0.0
uses = 1

[learner]
lr = 6e-4
grad_clip = 40.0
"""


class Case(NamedTuple):
    """Where the key shows, the value it is changed to, and what must be set for it to matter."""

    look: Callable[[run_file.Run, Path], Any]
    changed: str
    base: tuple[str, ...] = ()


weights, images = trained.after_training(), trained.after_training(trained.IMAGE)
rows = trained.after_training(trained.MANY)
APPO, PPO = "algorithm.name=appo", "algorithm.name=ppo"
REPLAY, RMSPROP = "algorithm.replay_share=0.5", "learner.optimiser=rmsprop"
OWN = f"model.kind={trained.__name__}:encoder"
CATCH, MASKED = ("env.id=headrace/Catch-v0", "env.id=headrace/Masked-v0")
NIM, LEAGUE = "env.id=headrace.actors.envs.toys.several_agents:Nim", "league.share=0.5"
SIGNALS = "env.id=headrace.actors.envs.toys.several_agents:Signals"
INLINE = "actor.stepping=inline"
PROCESSES = ("actor.stepping=processes", "actor.groups=3")

CASES = {
    "run.name": Case(built.served, "other"),
    "run.seed": Case(weights, "2"),
    "env.id": Case(built.environment, "Acrobot-v1"),
    "env.kwargs": Case(built.environment, "{ sutton_barto_reward = true }"),
    "env.wrappers": Case(
        built.environment, '[{ id = "gymnasium.wrappers:TimeLimit", max_episode_steps = 1 }]'
    ),
    "env.stack": Case(built.environment, "2", (CATCH,)),
    "env.mask": Case(built.environment, "allowed", (MASKED,)),
    "env.agents": Case(built.seen, '["listener_0"]', (SIGNALS, 'env.agents=["speaker"]')),
    "env.others": Case(
        built.evaluation,
        '{ second = "tests.actors.acting.test_opponents:one_stone" }',
        (NIM, 'env.agents=["first"]', 'env.others={ second = "random" }'),
    ),
    "env.critic": Case(built.environment, '["lamp"]', ("env.id=headrace/Parts-v0",)),
    "env.metrics": Case(built.stepper, '["success"]', (INLINE,)),
    "env.settings": Case(built.stepper, "{ gravity = 1.0 }", (INLINE,)),
    "env.curriculum": Case(
        weights, f"{trained.__name__}:harder", ("env.settings={ gravity = 1.0 }",)
    ),
    "env.population": Case(built.environment, "3"),
    "env.policy": Case(built.environment, "4", ("env.population=9",)),
    "env.bounds": Case(built.environment, "tanh", ("env.id=Pendulum-v1",)),
    "unroll.length": Case(built.learning, "6"),
    "unroll.envs": Case(built.learning, "4"),
    "unroll.largest": Case(lambda *run: (built.learning(*run), built.sampler(*run)), "5.0"),
    "unroll.trace_every": Case(lambda *run: (built.drained(*run), built.traced(*run)), "100"),
    "model.kind": Case(images, "nature"),
    "model.kwargs": Case(weights, "{ units = 9 }", (OWN,)),
    "model.hidden": Case(weights, "[7]"),
    "model.activation": Case(weights, "relu"),
    "model.separate": Case(weights, "false"),
    "model.obs_scale": Case(weights, "[2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]"),
    "model.core": Case(weights, "gru"),
    "model.core_units": Case(weights, "5", ("model.core=lstm",)),
    "model.core_bias": Case(weights, "1.0", ("model.core=lstm",)),
    "model.core_context": Case(weights, "5", ("model.core=transformer",)),
    "model.core_layers": Case(weights, "2", ("model.core=transformer",)),
    "model.previous": Case(weights, "true"),
    "model.normalise_obs": Case(weights, "true"),
    "model.normalise_images": Case(images, "true", ("model.kind=nature",)),
    "model.normalise_returns": Case(weights, "true"),
    "model.std": Case(weights, "network"),
    "model.std_init": Case(weights, "0.5"),
    "model.wire": Case(built.sent, "bfloat16"),
    "algorithm.name": Case(weights, "appo"),
    "algorithm.loss": Case(weights, f"{trained.__name__}:loss"),
    "algorithm.gamma": Case(weights, "0.5"),
    "algorithm.reward_scale": Case(weights, "0.5"),
    "algorithm.reward_clip": Case(weights, "1.0"),
    "algorithm.trace": Case(weights, "0.5"),
    "algorithm.rho_clip": Case(weights, "0.5"),
    "algorithm.c_clip": Case(weights, "0.5"),
    "algorithm.pg_rho_clip": Case(weights, "0.5"),
    "algorithm.value_coef": Case(weights, "0.1"),
    "algorithm.value_clip": Case(weights, "0.001", (PPO,)),
    "algorithm.entropy_coef": Case(weights, "[[0, 0.1], [1000, 0.0]]"),
    "algorithm.normalise_advantages": Case(weights, "true"),
    "algorithm.clip": Case(weights, "0.01", (PPO,)),
    "algorithm.epochs": Case(weights, "2", (PPO,)),
    "algorithm.minibatches": Case(weights, "2", (PPO,)),
    "algorithm.kl_stop": Case(weights, "1e-9", (PPO,)),
    "algorithm.buffer_batches": Case(weights, "3", (APPO, "algorithm.uses=2")),
    "algorithm.uses": Case(weights, "2", (APPO,)),
    "algorithm.target_interval": Case(weights, "1", (APPO,)),
    "algorithm.target_rate": Case(weights, "0.5", (APPO,)),
    "algorithm.kl_coef": Case(weights, "1.0", (APPO,)),
    "algorithm.kl_target": Case(weights, "1e-6", (APPO, "algorithm.kl_coef=1.0")),
    "algorithm.drift_limit": Case(images, "0.05"),
    "algorithm.replay_share": Case(weights, "0.5"),
    "algorithm.replay_unrolls": Case(weights, "1", (REPLAY,)),
    "algorithm.replay_pick": Case(weights, "recent", (REPLAY,)),
    "learner.optimiser": Case(weights, "rmsprop"),
    "learner.lr": Case(weights, "[[0, 1e-2], [100, 0.0]]"),
    "learner.eps": Case(weights, "0.1"),
    "learner.decay": Case(weights, "0.5", (RMSPROP,)),
    "learner.momentum": Case(weights, "0.5", (RMSPROP,)),
    "learner.grad_clip": Case(weights, "0.01"),
    "learner.grad_clip_value": Case(weights, "0.001"),
    "learner.device": Case(built.learning, "cuda", ("learner.device=cpu",)),
    "learner.precision": Case(weights, "bfloat16"),
    "learner.replace_every": Case(rows, "1"),
    "learner.spread": Case(built.learning, "{ lr = 3.0 }", ("env.population=3",)),
    "learner.warm_start": Case(built.learning, "nowhere"),
    "learner.graph": Case(trained.by_the_device, "true", ("algorithm.replay_share=0",)),
    "learner.compile": Case(trained.compiles, "true", ("learner.compile=false",)),
    "learner.gpu_share": Case(built.learning, "0.5"),
    "learner.shard": Case(trained.shards, "true"),
    "learner.together": Case(built.together, "true"),
    "learner.threads": Case(built.learning, "2"),
    "learner.prefetch": Case(built.learning, "3"),
    "learner.rank_timeout_s": Case(built.learning, "50.0"),
    "learner.progress_s": Case(trained.lines, "1e-9", ("learner.progress_s=0",)),
    "checkpoint.every_s": Case(trained.checkpoints, "1e-9"),
    "checkpoint.keep": Case(trained.checkpoints, "4", ("checkpoint.every_s=1e-9",)),
    "checkpoint.keep_every": Case(
        trained.checkpoints, "2", ("checkpoint.every_s=1e-9", "checkpoint.keep=2")
    ),
    "pacing.batch_unrolls": Case(built.served, "3"),
    "pacing.max_lag": Case(built.served, "3"),
    "pacing.balance": Case(built.served, "environments"),
    "pacing.max_lag_hard": Case(built.served, "65"),
    "broker.bind": Case(built.address, "tcp://10.0.0.1:5755"),
    "broker.announce": Case(built.served, "tcp://127.0.0.1:*"),
    "broker.shards": Case(built.served, "2", ("pacing.batch_unrolls=4", "pacing.max_lag=1")),
    "broker.queue_mb": Case(built.served, "513.0"),
    "broker.beat_s": Case(built.served, "0.5"),
    "broker.lease_s": Case(built.served, "11.0"),
    "broker.attempts": Case(built.served, "4"),
    "broker.peers": Case(built.served, "20000"),
    "broker.streams": Case(built.served, "2048"),
    "broker.peer_messages_s": Case(built.served, "1.0"),
    "broker.peer_mb_s": Case(built.served, "1.0"),
    "broker.messages_s": Case(built.served, "1.0"),
    "broker.mb_s": Case(built.served, "1.0"),
    "broker.hello_s": Case(built.served, "1.0"),
    "security.curve": Case(built.learning, "true"),
    "security.keys": Case(built.learning, "elsewhere", ("security.curve=true",)),
    "actor.count": Case(built.plans, "3"),
    "actor.groups": Case(built.sampler, "2"),
    "actor.stepping": Case(built.stepper, "processes", (INLINE,)),
    "actor.workers": Case(built.stepper, "2", PROCESSES),
    "actor.precision": Case(built.sampler, "bfloat16", ("actor.precision=float32",)),
    "actor.acting": Case(built.sampler, "central", (OWN,)),
    "actor.explore": Case(built.sampler, f"{trained.__name__}:explore"),
    "actor.threads": Case(built.sampler, "2"),
    "actor.wait_ms": Case(built.sampler, "2.0"),
    "actor.step_timeout_s": Case(built.stepper, "50.0", PROCESSES),
    "actor.crashes_per_hour": Case(built.sampler, "99"),
    "actor.drain_s": Case(built.drained, "6.0"),
    "evaluate.episodes": Case(built.evaluation, "21"),
    "evaluate.every_s": Case(built.evaluation, "100.0"),
    "evaluate.share": Case(built.evaluation, "0.5"),
    "evaluate.envs": Case(built.evaluation, "5"),
    "evaluate.greedy": Case(built.evaluation, "false"),
    "evaluate.against": Case(built.evaluation, "random", (NIM,)),
    "league.share": Case(built.sampler, "0.5", (NIM,)),
    "league.every": Case(built.sampler, "7", (NIM, LEAGUE)),
    "league.keep": Case(built.sampler, "3", (NIM, LEAGUE)),
    "league.others": Case(built.sampler, '["random"]', (NIM, LEAGUE)),
    "league.pick": Case(built.sampler, "newest", (NIM, LEAGUE)),
    "evaluate.seed": Case(built.evaluation, "7"),
    "evaluate.keep": Case(built.best_weights, "1"),
    "log.sinks": Case(built.plans, '["csv"]'),
    "log.episodes": Case(built.learning, "4"),
    "search.vary": Case(built.searched, '["learner.lr=1e-4..1e-2"]', ("stop.steps=9",)),
    "search.metric": Case(built.searched, "return", ("stop.steps=9",)),
    "search.seeds": Case(built.searched, "[1, 2]", ("stop.steps=9",)),
    "stop.return": Case(built.learning, "5.0"),
    "stop.steps": Case(built.learning, "5"),
    "stop.seconds": Case(built.learning, "5.0"),
    "stop.metric": Case(built.learning, "evaluation", ("stop.return=5.0",)),
}


def test_every_key_has_a_case() -> None:
    keys = {f"{section}.{key}" for section, keys in run_file.SECTIONS.items() for key in keys}
    assert CASES.keys() - keys == set()
    assert keys - CASES.keys() == set()


@pytest.mark.slow
@pytest.mark.parametrize("key", CASES)
def test_a_key_changes_what_happens(key: str, tmp_path: Path) -> None:
    case, path = CASES[key], tmp_path / "run.toml"
    path.write_text(RUN)

    def seen(name: str, *sets: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        return case.look(run_file.load(str(path), [*case.base, *sets]), folder)

    base = seen("base")
    assert seen("again") == base, "it changes by itself, so it tells nothing"
    assert seen("changed", f"{key}={case.changed}") != base
