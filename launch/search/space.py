"""The settings that a search varies, and between what: those that ship, or what --vary says."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import optuna

from headrace.launch.comparison import sweep, training
from headrace.launch.config import run_file

_LOG_FROM = 10.0  # ends so many times apart are far apart: as many trials in each decade
# What is of the search itself, or of no weight.
_NOT_VARIED = {"run", "stop", "log", "search", "security", "evaluate", "checkpoint"}


@dataclass(frozen=True, slots=True)
class Range:
    """Holds one setting and what it may be."""

    key: str  # section.key
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # whole numbers only
    choices: tuple[str, ...] = ()  # TOML values; () = a number between low and high

    @property
    def log(self) -> bool:
        """Tells whether factors count, and not differences."""
        return self.low > 0 and self.high / self.low >= _LOG_FROM

    @property
    def ends(self) -> tuple[str, ...]:
        """Returns the values that a run must take for it to take all."""
        return self.choices or (self.text(self.low), self.text(self.high))

    def text(self, value: float | str) -> str:
        """Returns a value as --set takes it."""
        if isinstance(value, str):
            return value
        return str(int(value)) if self.whole else f"{float(value):.6g}"

    def ask(self, trial: optuna.trial.Trial) -> str:
        """Returns what a trial has for it, as --set takes it."""
        if self.choices:
            return f"{self.key}={trial.suggest_categorical(self.key, self.choices)}"
        if self.whole:
            low, high = int(self.low), int(self.high)
            return f"{self.key}={trial.suggest_int(self.key, low, high, log=self.log)}"
        value = trial.suggest_float(self.key, self.low, self.high, log=self.log)
        return f"{self.key}={self.text(value)}"

    def nearest(self, value: object) -> float | str | None:
        """Returns what in the range is nearest to a run's own value; of a schedule its beginning
        counts. None = nothing is near it."""
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = value[0][1]
        if not isinstance(value, int | float):
            return next((c for c in self.choices if c.strip("\"'") == value), None)
        if not self.choices:
            inside = min(max(float(value), self.low), self.high)
            return int(inside) if self.whole else inside
        numbers = {choice: number for choice in self.choices if (number := _number(choice))}
        return min(numbers, key=lambda choice: abs(numbers[choice] - value), default=None)


_EVERY = (
    Range("learner.lr", 1e-5, 1e-2),
    Range("algorithm.entropy_coef", 1e-4, 0.05),
    Range("algorithm.gamma", choices=("0.9", "0.95", "0.98", "0.99", "0.995", "0.999")),
    Range("algorithm.trace", choices=("0.8", "0.9", "0.95", "1.0")),
    Range("learner.grad_clip", 0.3, 10.0),
    Range("unroll.length", choices=("8", "16", "32", "64", "128")),
)
_OF_ALGORITHM = {
    "ppo": (
        Range("algorithm.epochs", 2, 20, whole=True),
        Range("algorithm.minibatches", choices=("1", "4", "8", "32")),
        Range("algorithm.clip", 0.1, 0.3),
    ),
    "appo": (
        Range("algorithm.uses", 1, 4, whole=True),
        Range("algorithm.clip", 0.1, 0.3),
        Range("pacing.max_lag", 1, 4, whole=True),
    ),
    "impala": (Range("pacing.max_lag", 1, 4, whole=True),),
}


def shipped(run: run_file.Run) -> list[Range]:
    """Returns what is varied where nobody says what: settings that every task has to choose."""
    return [*_EVERY, *_OF_ALGORITHM[run.algorithm.name]]


def read(
    vary: Sequence[str], name: str, sets: Sequence[str], *, sections: Sequence[str] = ()
) -> list[Range]:
    """Returns the ranges of a search of a run: of --vary KEY, KEY=LOW..HIGH or KEY=VALUE,VALUE, or
    those that ship, with `sections` of these alone. ConfigError where the run cannot be what one of
    them says."""
    run = run_file.load(name, sets)
    known = {one.key: one for one in _possible(shipped(run), name, sets)}
    ships = [one for key, one in known.items() if not sections or key.split(".")[0] in sections]
    found = [_read(text, known) for text in vary] or ships
    keys = [one.key for one in found]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise run_file.ConfigError(f"--vary {twice} is given twice")
    for one in found:
        for value in one.ends:
            _check(name, sets, one.key, value)
    return found


def nearest(ranges: Sequence[Range], run: run_file.Run) -> dict[str, float | str]:
    """Returns what in the ranges is nearest to what the run itself has."""
    has = training.settings(run, [one.key for one in ranges])
    near = {one.key: one.nearest(has[one.key]) for one in ranges}
    return {key: value for key, value in near.items() if value is not None}


def _possible(ranges: Sequence[Range], name: str, sets: Sequence[str]) -> Iterator[Range]:
    """Yields the ranges that ship, without the choices that this run cannot have."""
    for one in ranges:
        choices = []
        for choice in one.choices:
            with contextlib.suppress(run_file.ConfigError):
                _check(name, sets, one.key, choice)
                choices.append(choice)
        if not one.choices or len(choices) > 1:
            yield replace(one, choices=tuple(choices))


def _read(text: str, known: dict[str, Range]) -> Range:
    key, equals, values = (part.strip() for part in text.partition("="))
    section, _, name = key.partition(".")
    if name not in run_file.SECTIONS.get(section, {}):
        raise run_file.ConfigError(f"--vary {text}: it is SECTION.KEY, or SECTION.KEY=LOW..HIGH")
    if section in _NOT_VARIED:
        raise run_file.ConfigError(f"--vary {text}: [{section}] is not what a run learns by")
    if not equals:
        if key not in known:
            raise run_file.ConfigError(
                f"--vary {text}: no range of it is known; write {key}=LOW..HIGH or {key}=A,B"
            )
        return known[key]
    low, dots, high = values.partition("..")
    if dots:
        ends = _number(low), _number(high)
        if ends[0] is None or ends[1] is None or ends[0] >= ends[1]:
            raise run_file.ConfigError(f"--vary {text}: LOW..HIGH goes from a smaller to a larger")
        whole = all(re.fullmatch(r"-?\d+", end.strip()) for end in (low, high))
        return Range(key, ends[0], ends[1], whole=whole)
    choices = tuple(dict.fromkeys(sweep.split(values)))
    if len(choices) < 2 or not all(choices):
        raise run_file.ConfigError(f"--vary {text}: it is {key}=LOW..HIGH, or two values or more")
    return Range(key, choices=choices)


def _check(name: str, sets: Sequence[str], key: str, value: str) -> None:
    try:
        run_file.load(name, (*sets, f"{key}={value}"))
    except run_file.ConfigError as error:
        raise run_file.ConfigError(str(error).replace("--set", "--vary", 1)) from None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None
