"""Commands that start one role of a run: broker, learner, actor, node, evaluate."""

import argparse
import contextlib
import itertools
import socket
from pathlib import Path
from typing import Any

from headrace.broker.transport import several
from headrace.launch import shared_options as shared
from headrace.launch.commands.command import Command
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.roles.options import Address, PeerOptions, default_name, learner_arguments

# ---- broker --------------------------------------------------------------------------------------


def _broker_arguments(broker: argparse.ArgumentParser) -> None:
    broker.add_argument("--run", required=True, help="a TOML file, or the name of a shipped run")
    shared.sets(broker)
    broker.add_argument("--bind", help="tcp://host:port or ipc:///path; default: broker.bind")
    broker.add_argument(
        "--shard",
        type=int,
        default=0,
        metavar="I",
        help="which of broker.shards brokers it is, from 0; without --bind each has the second port"
        " after the one before",
    )
    broker.add_argument("--report", type=shared.path, help="write the final numbers here as JSON")
    broker.add_argument(
        "--ledger", type=shared.path, help="write what became of unrolls into this folder"
    )
    broker.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine even without keys"
    )
    shared.key(broker, "broker.key in the folder security.keys")
    shared.metrics(broker)
    shared.page_name(broker)
    shared.log_form(broker)


def _broker(given: argparse.Namespace) -> int:
    from headrace.launch.roles import broker

    shared.start_log("broker", given)
    run = run_file.load(given.run, given.set)
    if not 0 <= given.shard < run.broker.shards:
        raise run_file.ConfigError(
            f"--shard {given.shard}: broker.shards is {run.broker.shards}, and they count from 0"
        )
    options = broker.Options(
        bind=given.bind or several.of_shard(run.broker.bind, given.shard),
        metrics=Address(given.metrics_host, given.metrics_port),
        report=given.report,
        ledger=given.ledger,
        key=given.key,
        insecure=given.insecure,
        page_names=given.page_name,
    )
    return broker.serve(run, options)


BROKER = Command("the run's broker, alone", _broker_arguments, _broker)

# ---- learner: its arguments are those of torchrun -m headrace.launch.learner, too ----------------


def _learner_arguments(learner: argparse.ArgumentParser) -> None:
    learner_arguments(learner)
    shared.log_form(learner)


def _learner(given: argparse.Namespace) -> int:
    from headrace.launch.learner import main as learn

    return learn(given)


LEARNER = Command("a learner rank, alone (several: torchrun)", _learner_arguments, _learner)

# ---- actor ---------------------------------------------------------------------------------------


def _actor_arguments(actor: argparse.ArgumentParser) -> None:
    _brokers(actor)
    shared.peer_name(actor, "shown in logs; default: host and process id")
    actor.add_argument("--seed", type=shared.seed, help="of its environments; default: random")
    shared.sampling(actor)
    _ledgers(actor)
    actor.add_argument(
        "--shelf",
        type=shared.path,
        metavar="PATH",
        help="take weights from this machine's shared memory, where headrace node puts them",
    )
    # A policy's folder, of those that headrace train has trained together and that is done.
    actor.add_argument(
        "--done", type=shared.path, action="append", default=[], help=argparse.SUPPRESS
    )
    shared.sent_run(actor, key_default="none")


def _actor(given: argparse.Namespace) -> int:
    from headrace.launch.roles import sampler

    shared.start_log("actor", given)
    seed = given.seed if given.seed is not None else runtime.incarnation() % 2**31
    peers = _peers(given, name=given.name or default_name())
    if len(peers) == 1 and not given.done:
        return sampler.sample(peers[0], seed=seed, shelf=given.shelf)
    if given.shelf is not None:
        raise run_file.ConfigError("--shelf holds the weights of one policy; leave it out")
    from headrace.launch.policies.sampler import sample

    return sample(peers, seed=seed, done=given.done)


ACTOR = Command("a sampler, alone; the run comes from the broker", _actor_arguments, _actor)

# ---- node ----------------------------------------------------------------------------------------


def _node_arguments(node: argparse.ArgumentParser) -> None:
    _brokers(node)
    node.add_argument(
        "--samplers",
        type=shared.size,
        metavar="N|FILE",
        help="how many, or a file that says it, which SIGHUP reads again; default, also where that"
        " file is not there: one for each core it may use",
    )
    node.add_argument(
        "--notice",
        type=shared.notice,
        metavar="FILE|URL",
        help="drain and end as soon as this file is there, or this address answers 200 with a body"
        " that is not empty, FALSE or NONE: the machine is to be taken away",
    )
    node.add_argument(
        "--notice-header",
        type=shared.header,
        metavar="'NAME: VALUE'",
        help="asked with it: a token, or what the cloud wants to see",
    )
    shared.peer_name(
        node,
        "shown in logs; its samplers are NAME-0, ..; default: host; the second on a machine"
        " is NAME.2",
    )
    shared.sampling(node)
    _ledgers(node)
    shared.sent_run(node, key_default="none; a sampler's")


def _node(given: argparse.Namespace) -> int:
    from headrace.launch.node import node
    from headrace.launch.node.notice import Notice

    shared.start_log("node", given)
    with contextlib.closing(Notice(given.notice, given.notice_header)) as notice:
        peers = _peers(given, name=socket.gethostname())
        return node.node(peers, samplers=given.samplers, notice=notice)


NODE = Command("a machine's samplers; one command for each machine", _node_arguments, _node)

# ---- evaluate ------------------------------------------------------------------------------------


def _evaluate_arguments(evaluate: argparse.ArgumentParser) -> None:
    shared.broker_address(evaluate)
    evaluate.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="the broker of another policy that plays in the same environments; once for each",
    )
    # The folder of one that headrace train has trained together with it and that is done.
    evaluate.add_argument(
        "--done", type=shared.path, action="append", default=[], help=argparse.SUPPRESS
    )
    shared.peer_name(evaluate, "shown in logs; default: host and process id")
    evaluate.add_argument(
        "--out",
        type=shared.path,
        help="the run's folder: evaluations and the best weights go there",
    )
    evaluate.add_argument("--episodes", type=int, help="of each evaluation; default: the run's")
    evaluate.add_argument("--every-s", type=float, help="between their starts; default: the run's")
    evaluate.add_argument("--share", type=float, help="of this machine; default: the run's")
    shared.sent_run(evaluate, key_default="none")


def _evaluate(given: argparse.Namespace) -> int:
    from headrace.launch.roles.evaluation import evaluator

    shared.start_log("evaluator", given)
    own = {key: getattr(given, key) for key in ("episodes", "every_s", "share")}
    peer = _peer(given, given.broker, name=default_name(), **own)
    return evaluator.evaluate(
        peer, out=given.out, beside=tuple(given.beside), done=tuple(given.done)
    )


EVALUATE = Command(
    "an evaluator, alone; the run comes from the broker", _evaluate_arguments, _evaluate
)

# ---- of several ----------------------------------------------------------------------------------


def _brokers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        action="append",
        required=True,
        help="its address, of several brokers all with commas between; once for each policy, where"
        " several play in the same environments",
    )


def _ledgers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ledger",
        type=shared.path,
        action="append",
        default=[],
        help="write what was generated into this folder; as often as --broker",
    )


def _sampling(given: argparse.Namespace) -> dict[str, Any]:
    """Returns what was given of the section [actor]."""
    return {key: getattr(given, key) for key in ("groups", "stepping", "acting", "drain_s")}


def _peers(given: argparse.Namespace, *, name: str) -> list[PeerOptions]:
    """Returns what was given for a sampler, for each broker."""
    if given.ledger and len(given.ledger) != len(given.broker):
        raise run_file.ConfigError(
            f"{len(given.broker)} --broker and {len(given.ledger)} --ledger: each broker's unrolls"
            " go into a folder of their own"
        )
    return [
        _peer(given, broker, ledger, name=name, **_sampling(given))
        for broker, ledger in itertools.zip_longest(given.broker, given.ledger)
    ]


def _peer(
    given: argparse.Namespace, broker: str, ledger: Path | None = None, *, name: str, **sets: Any
) -> PeerOptions:
    """Returns what was given for a peer of this broker; `name`: if none was, `sets`: what was said
    of its section."""
    name = given.name or name
    return PeerOptions(
        several.choose(broker, name),
        name,
        sets={key: value for key, value in sets.items() if value is not None},
        ledger=ledger,
        metrics=Address(given.metrics_host, given.metrics_port),
        key=given.key,
        allow=given.allow,
        brokers=broker,
    )
