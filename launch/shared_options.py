"""Options that several commands share, and the checks of their values."""

import argparse
import errno
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.actors.config import ACTINGS, STEPPINGS
from headrace.broker.protocol.fields import MOST_NAME
from headrace.launch.config import run_file
from headrace.launch.process import logs

# What a run may be, in words.
RUNS: Final = f"a TOML file, or one of: {', '.join(run_file.shipped())}"

_UNITS = {"s": 1, "m": 60, "h": 3600}

# ---- values --------------------------------------------------------------------------------------


def path(word: str) -> Path:
    """Returns the word as a path; rejects one that no file system takes."""
    found = Path(word)
    try:
        found.stat()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{word!r:.80} can be no path: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise argparse.ArgumentTypeError(f"{word:.80}.. is too long for a path") from None
    return found


def name(word: str) -> str:
    """Checks a peer's name, which logs, the page and every HELLO show; leaves room in MOST_NAME for
    what a node adds: which one of its machine it is, and the number of each sampler."""
    most = MOST_NAME - len(".99-1023")
    if len(word) > most or not word.isprintable():
        raise argparse.ArgumentTypeError(
            f"a name has at most {most} characters, all of them printable; this one has {len(word)}"
        )
    return word


def seed(word: str) -> int:
    seed = int(word)
    if not 0 <= seed < 2**31:
        raise argparse.ArgumentTypeError(f"{word} is not between 0 and {2**31 - 1}")
    return seed


def count(word: str) -> int:
    count = int(word)
    if not 1 <= count <= 1024:
        raise argparse.ArgumentTypeError(f"{word} is not between 1 and 1024")
    return count


def steps(word: str) -> int:
    steps = int(word)
    if not 1 <= steps < 2**53:
        raise argparse.ArgumentTypeError(f"{word} is not between 1 and {2**53 - 1}")
    return steps


def time(word: str) -> float:
    """Returns the seconds of 90s, 20m or 2h."""
    number, unit = word[:-1], _UNITS.get(word[-1:])
    if unit is None or not number.replace(".", "", 1).isdecimal() or not float(number):
        raise argparse.ArgumentTypeError(f"{word!r:.40} is no time: 90s, 20m or 2h")
    return float(number) * unit


def gpu_rate(word: str) -> tuple[str, float]:
    """Returns the name and the steps a second of T4=20000."""
    name, _, number = word.partition("=")
    if not name or not number.replace(".", "", 1).isdecimal() or not 0 < float(number) <= 1e12:
        raise argparse.ArgumentTypeError(f"{word!r:.40} is not as T4=20000")
    return name, float(number)


def size(word: str) -> int | Path:
    """Returns a count, or the path of a file that holds it."""
    return count(word) if word.lstrip("-").isdigit() else path(word)


def notice(word: str) -> Path | str:
    """Returns a URL as it is, anything else as a path."""
    if not word.startswith(("http://", "https://")):
        return path(word)
    if not urlsplit(word).hostname:
        raise argparse.ArgumentTypeError(f"{word!r:.80} names no host")
    return word


def header(word: str) -> tuple[str, str]:
    """Returns name and value of a header; it may be a secret, so it is not repeated."""
    name, _, value = word.partition(":")
    value = value.strip()
    named = re.fullmatch(r"[\w-]+", name, re.ASCII)
    if not (named and value and value.isascii() and value.isprintable()):
        raise argparse.ArgumentTypeError("a header is 'NAME: VALUE', in printable ASCII")
    return name, value


def checkpoint_name(word: str) -> str:
    if word not in ("best", "newest") and not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r:.40} is not best, newest or a version's number")
    return word


def seconds(word: str) -> float:
    """Returns the seconds of a drain: as many as actor.drain_s may be."""
    seconds = float(word)
    if not 0 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"{word} is not between 0 and 600")
    return seconds


# ---- options -------------------------------------------------------------------------------------


def run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help=RUNS)


def run_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=path, metavar="RUN_DIR", help="the run's folder, as headrace train wrote it"
    )


def checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        metavar="best|newest|VERSION",
        help="default: the best where there is one",
    )


def sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one key; stop.steps=none: there is no such limit",
    )


def broker_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker", required=True, help="its address, of several all with commas between"
    )


def web(parser: argparse.ArgumentParser, told: str) -> None:
    parser.add_argument("--web", type=int, nargs="?", const=8800, metavar="PORT", help=told)


def peer_name(parser: argparse.ArgumentParser, told: str) -> None:
    parser.add_argument("--name", type=name, help=told)


def sampling(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a sampler that a node hands on to all of its own."""
    parser.add_argument("--groups", type=count, help="groups of environments; default: the run's")
    parser.add_argument("--stepping", choices=STEPPINGS, help="default: the run's")
    parser.add_argument(
        "--acting",
        choices=ACTINGS,
        help="central: one process of a node calls the network for all of its samplers, on a GPU if"
        " there is one; default: the run's",
    )
    parser.add_argument(
        "--drain-s",
        type=seconds,
        help="when asked to end, wait so long for acknowledgements; default: the run's",
    )


def sent_run(parser: argparse.ArgumentParser, *, key_default: str) -> None:
    """Adds the options of every role whose run comes from the broker."""
    key(parser, key_default)
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PREFIX",
        help="a package, module or module:factory that the broker's run may name; may be said"
        " again; also a line each in /etc/headrace/allow and ~/.config/headrace/allow",
    )
    metrics(parser)
    log_form(parser)


def key(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--key", type=path, metavar="FILE", help=f"its key; default: {default}")


def log_form(parser: argparse.ArgumentParser) -> None:
    """Adds --log to commands that run for days; all others always print lines for people."""
    parser.add_argument(
        "--log",
        choices=logs.FORMS,
        help=f"lines for people, or JSON; auto: by whether this is a terminal;"
        f" default: {logs.VARIABLE}, else auto",
    )


def start_log(role: str, given: argparse.Namespace) -> None:
    """Starts the log of a command that has --log."""
    logs.start(role, quiet=given.log_level == "warning", form=logs.chosen(given.log))


def metrics(
    parser: argparse.ArgumentParser, told: str = "serve /metrics and /healthz; 0 = any"
) -> None:
    parser.add_argument("--metrics-host", default="127.0.0.1", help="default: this machine only")
    parser.add_argument("--metrics-port", type=int, help=told)


def page_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--page-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which browsers reach the page; addresses and this machine's own"
        " name need not be said",
    )
