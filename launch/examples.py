"""The examples at the end of each command's help."""

import textwrap

from headrace.launch.config import run_file

_ALL = {
    "train": (
        ("headrace train cartpole", "until it is solved, in headrace-runs/cartpole"),
        ("headrace train pong --stop-seconds 3600", "an hour; the best are kept"),
        ("headrace train cartpole --set learner.lr=1e-3 --set stop.steps=none", "other settings"),
        ("headrace train mine.toml --out runs/mine --resume", "goes on with a run of your own"),
    ),
    "new": (
        ("headrace new Acrobot-v1", "writes acrobot.toml: headrace train acrobot.toml"),
        ("headrace new mine:make --algorithm appo --out mine.toml", "of an environment of yours"),
    ),
    "play": (
        ("headrace play headrace-runs/cartpole", "ten episodes with the best weights"),
        ("headrace play headrace-runs/cartpole --video pole.mp4 --episodes 1", "a film"),
    ),
    "rate": (
        ("headrace rate headrace-runs/connect-four", "random and six checkpoints"),
        ("headrace rate runs/b --against runs/a --games 400", "the best of another run, too"),
    ),
    "export": (
        ("headrace export headrace-runs/cartpole --onnx --out pole.onnx", "to act without us"),
    ),
    "report": (("headrace report headrace-runs/cartpole --to pole.html", "one file to send"),),
    "log": (
        ("headrace log headrace-runs/cartpole --to tensorboard", "what it has written until now"),
        ("headrace log headrace-runs/cartpole --to wandb --follow", "while it trains"),
    ),
    "explain": (
        ("headrace explain headrace-runs/cartpole", "the first thing first, with its prediction"),
        ("headrace explain headrace-runs/mine --apply faster.toml", "as a run file"),
        ("headrace explain --broker tcp://10.0.0.1:5755", "a run that trains, from anywhere"),
    ),
    "tune-speed": (
        ("headrace tune-speed mine.toml", "a minute of short trainings, mine-fast.toml"),
        ("headrace tune-speed mine.toml --budget 5m --to fast.toml", "of a slow environment"),
    ),
    "search": (
        ("headrace search cartpole --budget 20m --metric time_to_return", "OUT/best.toml"),
        (
            "headrace search mine.toml --budget 2h --vary learner.lr --vary unroll.length=8,32",
            "these two",
        ),
        ("headrace search mine.toml --budget 2h --population 4", "settings change as it goes"),
    ),
    "sweep": (
        ("headrace sweep cartpole --seeds 1..5", "five seeds, as many at a time as cores allow"),
        ("headrace sweep cartpole --set learner.lr=1e-3,3e-3", "two settings, three seeds each"),
    ),
    "compare": (("headrace compare runs/a-1 runs/a-2 runs/b-1 --html c.html", "with curves"),),
    "branch": (
        ("headrace branch runs/a runs/b --set learner.lr=1e-4", "from here on more slowly"),
        ("headrace branch runs/a runs/b --version 4000", "from an older checkpoint"),
    ),
    "broker": (
        ("headrace broker --run mine.toml --bind tcp://127.0.0.1:5755", "on this machine"),
        (
            "headrace broker --run mine.toml --bind tcp://0.0.0.0:5755 --set security.curve=true",
            "for other machines, with keys",
        ),
    ),
    "learner": (
        ("headrace learner --run mine.toml --broker tcp://10.0.0.1:5755", "one rank"),
        ("headrace learner --run mine.toml --resume", "from its newest checkpoint"),
        (
            "headrace learner cartpole acrobot --broker ipc:///tmp/a --broker ipc:///tmp/b",
            "two runs in one process, a turn each",
        ),
        ("torchrun --nproc-per-node 2 -m headrace.launch.learner mine.toml", "two GPUs"),
    ),
    "actor": (
        ("headrace actor --broker tcp://10.0.0.1:5755", "one sampler"),
        ("headrace actor --broker tcp://10.0.0.1:5755 --key keys/actor.key", "with its key"),
    ),
    "node": (
        ("headrace node --broker tcp://10.0.0.1:5755", "a sampler for each core"),
        ("headrace node --broker tcp://10.0.0.1:5755 --samplers 8 --metrics-port 9101", "eight"),
        (
            "headrace node --broker tcp://10.0.0.1:5755 --samplers samplers.txt",
            "SIGHUP: read again",
        ),
    ),
    "evaluate": (
        ("headrace evaluate --broker tcp://10.0.0.1:5755 --out runs/mine", "beside the run"),
        ("headrace evaluate --broker tcp://10.0.0.1:5755 --share 1", "alone"),
    ),
    "replay": (("headrace replay headrace-runs/cartpole", "what train --record wrote down"),),
    "keygen": (
        ("headrace keygen keys", "one key for each role"),
        ("headrace keygen keys --actor node7 --actor node8", "two machines' own"),
    ),
    "audit": (("headrace audit headrace-runs/cartpole", "a table: every unroll in one row"),),
    "trace": (
        ("headrace trace headrace-runs/cartpole", "of a run with unroll.trace_every=100"),
        (
            "headrace trace headrace-runs/cartpole --otlp http://127.0.0.1:4318",
            "and into Jaeger, Tempo or another receiver of OpenTelemetry",
        ),
    ),
    "top": (
        ("headrace top --broker tcp://10.0.0.1:5755", "in the terminal"),
        ("headrace top --broker tcp://10.0.0.1:5755 --web 8800", "as a page"),
    ),
    "doctor": (
        ("headrace doctor", "this machine"),
        ("headrace doctor --run mine.toml --broker tcp://10.0.0.1:5755", "a run and its broker"),
    ),
    "plan": (
        ("headrace plan cartpole", "what a step costs here, and what this machine reaches"),
        ("headrace plan mine.toml --prices vms.csv --spot --gpu T4=90000", "one GPU kept busy"),
        ("headrace plan mine.toml --prices vms.csv --steps 20000000 --deadline 1h", "in time"),
    ),
    "units": (
        (
            "headrace units systemd --run mine.toml --nodes 2 --broker tcp://10.0.0.1:5755"
            " --out units",
            "unit files",
        ),
        ("headrace units slurm --run mine.toml --nodes 4 --ranks 2", "a batch script, printed"),
    ),
    "ray": (
        ("headrace ray cartpole --out /shared/cartpole", "on this machine's cluster"),
        ("headrace ray mine.toml --address 10.0.0.1:6379 --ranks 2 --out /shared/mine", "two GPUs"),
    ),
    "bench": (
        ("headrace bench broker", "unrolls a second through it"),
        ("headrace bench sampler breakout", "steps a second of one run's sampler"),
        ("headrace bench learn catch", "does it still learn, and how fast"),
    ),
    "config": (
        ("headrace config cartpole", "every key with its meaning, range and default"),
        ("headrace config pong --set actor.count=8", "what a setting makes of it"),
    ),
}


def epilog(command: str) -> str:
    """Returns the end of a command's help."""
    lines = [f"  {line}\n      {meaning}" for line, meaning in _ALL[command]]
    return "\n".join(("examples:", *lines))


def main_epilog() -> str:
    """Returns the end of the help of `headrace` itself."""
    return (
        "examples:\n"
        "  headrace train cartpole\n"
        "      a first run: everything on this machine, until it is solved\n"
        "  headrace COMMAND --help\n"
        "      a command's options, with examples\n"
        "runs that come with it:\n"
        + textwrap.fill(
            ", ".join(run_file.shipped()), 78, initial_indent="  ", subsequent_indent="  "
        )
    )


def command_lines(command: str) -> list[str]:
    """Returns a command's examples, without their meanings."""
    return [line for line, _ in _ALL[command]]
