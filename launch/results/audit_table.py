"""`headrace audit`: a run's account of unrolls as a table, and every gap in words."""

from collections.abc import Iterator
from pathlib import Path

from headrace.broker.journal import audit
from headrace.broker.journal.audit import Account, Sampler
from headrace.broker.journal.fates import OUTCOMES, meanings
from headrace.broker.journal.reader import Role
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.results.ledger_folder import ledger_folder
from headrace.launch.results.text_table import columns

_COLUMNS = ("sampler", "incarnation", "ended", "generated", *OUTCOMES, "in flight")
_WORDS = 3  # columns of words; the others are numbers
_MISSING = (
    "has no ledger: headrace train writes one; a learner, a broker and samplers that are started"
    " alone write theirs with --ledger FOLDER"
)


def audit_table(folder: Path) -> int:
    """Prints the table; returns 0 if it is exact to the last unroll, 1 if there is a gap."""
    try:
        account = audit.read(ledger_folder(folder, files="*.log", missing=_MISSING))
    except OSError as error:
        raise run_file.ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    if not account.journals[Role.SAMPLER]:
        raise run_file.ConfigError(
            f"{folder} has no sampler's ledger: start samplers with --ledger FOLDER, and bring"
            " their files (actor-*.log) together with the learner's and the broker's"
        )
    for line in lines(account):
        print(line)  # noqa: T201
    return runtime.OK if account.exact() else runtime.OUR_FAULT


def lines(account: Account) -> Iterator[str]:
    rows = [_COLUMNS, *(_row(sampler) for sampler in account.samplers), _totals(account)]
    yield from columns(rows, words=range(_WORDS))
    yield ""
    yield from meanings(account.outcomes)
    yield f"trained twice {account.twice:,}, rolled back {account.rolled_back:,}"
    if not account.journals[Role.BROKER]:
        yield "no broker's ledger (--ledger): what it settled and nobody heard counts as in flight"
    yield from gaps(account)
    yield "exact" if account.exact() else "NOT exact"


def gaps(account: Account) -> Iterator[str]:
    """Yields a line for each kind of gap."""
    yield from (f"damage: {words}" for words in account.damage)
    learners = account.journals[Role.LEARNER]
    for count, words in (
        (
            account.untrue,
            "said to be trained, but in no learner's ledger"
            + ("" if learners else "; there is none here: bring the learner's (learner-*.log)"),
        ),
        (account.ghosts, "ended, but in no sampler's ledger; is one missing here (actor-*.log)?"),
        (account.contradictions, "ended in two ways, by the word of one process"),
        (account.unfounded, "acknowledged with an outcome that no broker settled"),
    ):
        if count:
            yield f"gap: {count:,} unrolls {words}"
    for sampler in account.samplers:
        if count := sampler.too_many(account.window):
            may = "it ended in order" if sampler.ended else f"it may have {account.window:,} open"
            yield (
                f"gap: {count:,} unrolls too many are in flight of {sampler.name} ({sampler.inc}):"
                f" {sampler.in_flight:,}, but {may}"
            )


def _row(sampler: Sampler) -> tuple[str, ...]:
    # The ledger cannot tell the two apart, and both may have the same unrolls in flight.
    ended = "in order" if sampler.ended else "runs or killed"
    numbers = (sampler.generated, *sampler.fates)
    return (sampler.name, str(sampler.inc), ended, *(f"{number:,}" for number in numbers))


def _totals(account: Account) -> tuple[str, ...]:
    ended = sum(sampler.ended for sampler in account.samplers)
    numbers = (account.generated, *(account.outcomes[name] for name in OUTCOMES), account.in_flight)
    words = ("all", str(len(account.samplers)), f"{ended} in order")
    return (*words, *(f"{number:,}" for number in numbers))
