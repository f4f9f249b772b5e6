"""The `headrace` command: parses, calls, ends. Imports only what the command needs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

try:
    from headrace.broker.errors import UserError
    from headrace.broker.release import release
    from headrace.launch import examples
    from headrace.launch.commands import bench, machines, results, roles, runs, tuning
    from headrace.launch.commands.command import Command
    from headrace.launch.process import logs, runtime
except KeyboardInterrupt:  # too early for main to catch it
    raise SystemExit(3) from None

# In the order of `headrace --help`.
COMMANDS: Final[dict[str, Command]] = {
    "train": runs.TRAIN,
    "play": results.PLAY,
    "rate": results.RATE,
    "export": results.EXPORT,
    "report": results.REPORT,
    "log": results.LOG,
    "explain": tuning.EXPLAIN,
    "tune-speed": tuning.TUNE_SPEED,
    "search": tuning.SEARCH,
    "sweep": tuning.SWEEP,
    "compare": tuning.COMPARE,
    "branch": runs.BRANCH,
    "broker": roles.BROKER,
    "learner": roles.LEARNER,
    "actor": roles.ACTOR,
    "node": roles.NODE,
    "evaluate": roles.EVALUATE,
    "replay": results.REPLAY,
    "keygen": machines.KEYGEN,
    "audit": results.AUDIT,
    "trace": results.TRACE,
    "top": machines.TOP,
    "doctor": machines.DOCTOR,
    "plan": machines.PLAN,
    "units": machines.UNITS,
    "ray": machines.RAY,
    "bench": bench.BENCH,
    "config": runs.CONFIG,
    "new": runs.NEW,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints one line, not the whole usage."""
        print(f"{self.prog}: {message} (see: {self.prog} --help)", file=sys.stderr)  # noqa: T201
        raise SystemExit(runtime.YOUR_INPUT)


def parser() -> argparse.ArgumentParser:
    """Builds the parser; the parsed `command` is the name of the command."""
    whole = _Parser(
        prog="headrace",
        description="Asynchronous reinforcement learning.",
        epilog=examples.main_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"headrace {release()}")
    # For the processes that `headrace train` restarts.
    whole.add_argument(
        "--log-level", choices=("info", "warning"), default="info", help=argparse.SUPPRESS
    )
    listed = whole.add_subparsers(
        required=True, dest="command", metavar="COMMAND", parser_class=_Parser
    )
    for name, command in COMMANDS.items():
        command.arguments(
            listed.add_parser(
                name,
                help=command.summary,
                epilog=examples.epilog(name),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return whole


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 our fault, 2 your input, 3 a limit came first, 4 it
    diverged."""
    # module:factory may name a file in the working directory; installed packages go first.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    whole = parser()
    words = sys.argv[1:] if words is None else words
    if not words:
        whole.print_help()
        return runtime.OK
    given = whole.parse_args(words)
    try:
        return COMMANDS[given.command].call(given)
    except UserError as error:
        logs.refuse(error)
        return error.status
    except BrokenPipeError:
        return runtime.OK  # headrace config ... | head
    except KeyboardInterrupt:  # a run that has started handles it itself
        return runtime.LIMIT


if __name__ == "__main__":
    sys.exit(main())
