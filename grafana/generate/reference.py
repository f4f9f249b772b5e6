"""The documentation page of every metric, generated from the registries themselves."""

from collections.abc import Sequence
from typing import Final

from grafana.generate.boards import dashboards_of
from grafana.generate.registries import MetricDescription

_EACH: Final = "of one sampler; headrace_samplers_* has all of them"
# On no panel, on purpose. A test fails when a metric is neither on a panel nor here.
AD_HOC: Final = {
    "headrace_actor_episodes_total": _EACH,
    "headrace_actor_fragment_bytes_total": _EACH,
    "headrace_actor_fragments_total": _EACH,
    "headrace_actor_generated_fragments_total": _EACH,
    "headrace_actor_inference_calls_total": _EACH,
    "headrace_actor_inference_rows_total": _EACH,
    "headrace_actor_ledger_unaccounted": _EACH,
    "headrace_broker_over": "alerts leave a run alone that is complete",
    "headrace_actor_league_games_total": _EACH,
    "headrace_actor_metric_unusable_total": _EACH,
    "headrace_actor_unrecorded_steps_total": _EACH,
    "headrace_learner_coefficient": "as the run has them, unless it has schedules",
    "headrace_learner_own_loss": "only who wrote the loss knows what its figures mean",
    "headrace_samplers_metric_unusable_total": "each sampler's log names the metric",
    "process_virtual_memory_bytes": "torch reserves far more than it uses",
    "python_info": "which Python",
}

_HEAD = """\
# Metrics

    curl http://127.0.0.1:9100/metrics      # of a broker with --metrics-port 9100

A *fragment* is an unroll. A label's values are those that are there before anything happens. *Ad hoc*: on no panel, for a
question of the moment.
"""  # noqa: E501


def page(metrics: Sequence[MetricDescription]) -> str:
    """Renders the page in Markdown: a section per role, then the metrics that several roles
    have."""
    boards = dashboards_of(metrics)
    sections: dict[str, list[str]] = {}
    for one in metrics:
        title = one.roles[0].capitalize() if len(one.roles) == 1 else "Every process"
        sections.setdefault(title, []).append(_line(one, boards[one.name]))
    last = sections.pop("Every process", [])
    parts = [_HEAD]
    for title, lines in [*sorted(sections.items()), ("Every process", last)]:
        table = "\n".join(("| metric | type | labels | meaning | shown on |", _RULE, *lines))
        parts.append(f"## {title}\n\n{table}\n")
    return "\n".join(parts)


_RULE = "|---|---|---|---|---|"


def _line(one: MetricDescription, boards: Sequence[str]) -> str:
    labels = "; ".join(
        f"`{label}`" + (f" = {', '.join(values)}" if values else "")
        for label, values in one.labels.items()
    )
    where = ", ".join(boards) or f"ad hoc: {AD_HOC.get(one.name, '')}"
    return f"| `{one.name}` | {one.kind} | {labels} | {one.words} | {where} |"
