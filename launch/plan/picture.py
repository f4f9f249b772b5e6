"""Draws what a rate costs: dollars an hour by steps a second, the plan marked."""

from collections.abc import Sequence

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import choose_mix
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.machines import Machine
from headrace.launch.results import plots

_FROM, _TO, _POINTS = 1 / 8, 4.0, 41  # of the plan's rate, evenly on a logarithmic axis


def draw(
    costs: Costs, machines: Sequence[Machine], choice: Choice, rate: float, brokers: range
) -> str:
    """Returns the picture as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = prices(costs, machines, rate, brokers)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.step([per_s for per_s, _ in points], [price for _, price in points], where="pre")
    axes.plot([rate], [choice.price], "o", label=f"{rate:,.0f} steps/s, ${choice.price:.4g}/h")
    axes.set(xscale="log", xlabel="steps/s", ylabel="$/h", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return plots.as_svg(figure) + "\n"


def prices(
    costs: Costs, machines: Sequence[Machine], rate: float, brokers: range
) -> list[tuple[float, float]]:
    """Returns what rates around this one cost, as far as there are machines for them."""
    found = []
    for number in range(_POINTS):
        per_s = rate * _FROM * (_TO / _FROM) ** (number / (_POINTS - 1))
        try:
            found.append((per_s, choose_mix.choose(costs, machines, per_s, brokers).price))
        except ConfigError:
            break
    return found
