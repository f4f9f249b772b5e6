"""Student's t against its own distribution."""

import math

import pytest

from headrace.launch.results import confidence


@pytest.mark.parametrize("df", [*range(3, 33), 60, 120, 1000, 99_999])
def test_so_much_of_the_density_lies_between_them(df: int) -> None:
    """Simpson's rule over the density itself."""
    t, parts = confidence.quantile(df), 2000
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2

    def density(x: float) -> float:
        return math.exp(log_scale - (df + 1) / 2 * math.log1p(x * x / df))

    step = t / parts
    area = sum(
        density(i * step) * (1 if i in (0, parts) else 4 if i % 2 else 2) for i in range(parts + 1)
    )
    assert 2 * area * step / 3 == pytest.approx(0.95, abs=1e-6)


def test_the_fewest_degrees_of_freedom() -> None:
    """Their tails are too long for Simpson's rule, but have inverses in closed form."""
    p = 0.975
    exact = (math.tan(math.pi * (p - 0.5)), (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))))
    assert (confidence.quantile(1), confidence.quantile(2)) == pytest.approx(exact, abs=1e-6)


def test_an_interval_by_hand() -> None:
    # Mean 5, squared deviations 9 + 1 + 1 + 9, so s = sqrt(20 / 3); t(3) = 3.18245.
    found = confidence.interval_of([2.0, 4.0, 6.0, 8.0])
    assert found.mean == 5.0
    assert found.std == pytest.approx(2.5819889)
    assert found.low == pytest.approx(5.0 - 4.1085199, abs=1e-5)
    assert found.high == pytest.approx(5.0 + 4.1085199, abs=1e-5)


def test_one_value_alone_has_no_spread() -> None:
    assert confidence.interval_of([7.0]) == (7.0, None, None, None)


def test_equal_values_have_none_either() -> None:
    assert confidence.interval_of([3.0] * 5) == (3.0, 3.0, 3.0, 0.0)
