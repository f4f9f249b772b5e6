"""The screens of `headrace top`, without a broker."""

import io

import pytest
from rich.console import Console

from headrace.launch.monitor import screens
from headrace.launch.monitor.rates import Rates
from tests.launch.monitor.statuses import BARE, LONG, SCRIPT, hostile, status


def drawn(said: dict[str, object], rates: Rates, *, width: int, wrong: str = "") -> str:
    console = Console(file=io.StringIO(), width=width, height=60)
    console.print(
        screens.screen(said, rates, size=console.size, news="", wrong=wrong), highlight=False
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def after(seconds: int) -> Rates:
    rates = Rates()
    for second in range(seconds + 1):
        rates.update(status(second))
    return rates


@pytest.mark.parametrize("width", [40, 80, 110, 300])
def test_a_screen_has_all_that_matters(width: int) -> None:
    text = drawn(status(4), after(4), width=width)
    for words in (
        "breakout",
        "● training",
        "312",
        "10 behind",
        "24,200 steps/s",
        "37 queued",
        "64 at learners",
        "24,100 steps/s",
        "version 18",
        "1.31 versions",
        "341.0",
        "won",
        "0.25, evaluation 0.5",
        "none yet, evaluation 3",
        "wait 62 %, forward 25 %",
        "3.50 of at most 5",
        "every unroll",
        "trained",
        "4,920",
        "1,205",
    ):
        assert words in text, words
    assert max(map(len, text.splitlines())) <= width


def test_a_broker_that_is_silent_is_the_first_thing_said() -> None:
    first = drawn(status(), after(1), width=110, wrong="the broker has not answered").splitlines()[
        0
    ]
    assert "▲ the broker has not answered" in first
    assert "training" not in first


@pytest.mark.parametrize("width", [40, 110])
def test_words_of_strangers_stay_words(width: int) -> None:
    rates = Rates()
    rates.update(hostile())
    for text in (
        drawn(hostile(), rates, width=width),
        "\n".join(screens.plain_lines(hostile(), rates)),
    ):
        assert not {c for c in text if not c.isprintable()} - {"\n"}
        assert LONG[:2500] not in text
    assert SCRIPT in "\n".join(screens.plain_lines(hostile(), rates))
    told = status(late=[{"role": "actor", "name": "[red]x[/red]", "silent_s": 5.0}])
    assert "[red]x[/red]" in drawn(told, rates, width=110), "its own colours are not obeyed"


def test_a_broker_alone_has_little_to_say() -> None:
    rates = Rates()
    rates.update(BARE)
    assert "no learner is here" in drawn(BARE, rates, width=80)
    assert "samplers    0, 0 behind" in screens.plain_lines(BARE, rates)
    assert screens.plain_lines({}, Rates())


def test_a_run_that_has_trained_does_not_start() -> None:
    """One look, as of a pipe: there is no rate yet, however long the run has lasted."""
    rates = Rates()
    assert "state       it has trained; how fast is not known yet" in screens.plain_lines(
        status(400), rates
    )
    fresh = BARE | {"actors": {"count": 1}, "learners": [{}]}
    assert "state       starting" in screens.plain_lines(fresh, rates)


def test_what_is_not_accounted_for() -> None:
    assert "ledger      2 not accounted for" in screens.plain_lines(
        {**BARE, "unaccounted": 2}, Rates()
    )


def test_rates_are_differences_over_the_last_seconds() -> None:
    rates = after(30)
    assert rates("env_steps") == pytest.approx(24200)
    assert rates("outcome_trained") == pytest.approx(1205)
    assert rates("nothing") is None
    # It stands still: after the window the rate is none.
    for second in range(31, 45):
        rates.update({**status(30), "uptime_s": 4000.0 + second})
    assert rates("env_steps") == 0


def test_a_total_that_falls_began_anew() -> None:
    rates = after(5)
    back = status(6)
    back["samplers"]["env_steps"] = 10.0  # as when sums over samplers lose one
    assert not rates.update(back)
    assert rates("env_steps") is None
    assert rates("received") == pytest.approx(1205)


def test_another_broker_is_seen_however_long_it_is_up() -> None:
    """A busy machine may hear of it only when it has caught up with the one before."""
    rates = Rates()
    assert not rates.update({**status(30), "inc": "a"})
    assert rates.update({**status(31), "inc": "b"})
    assert not rates.update({**status(32), "inc": "b"})
