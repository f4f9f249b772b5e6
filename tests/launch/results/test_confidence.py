"""Student's t against the tables that everybody prints, and against its own distribution."""

import math

import pytest

from headrace.launch.results import confidence

# Two-sided 95 % and 99 %, from the tables of textbooks.
TABLE = {
    1: (12.706, 63.657),
    2: (4.303, 9.925),
    3: (3.182, 5.841),
    4: (2.776, 4.604),
    5: (2.571, 4.032),
    6: (2.447, 3.707),
    7: (2.365, 3.499),
    9: (2.262, 3.250),
    10: (2.228, 3.169),
    19: (2.093, 2.861),
    20: (2.086, 2.845),
    29: (2.045, 2.756),
    30: (2.042, 2.750),
    60: (2.000, 2.660),
    120: (1.980, 2.617),
    1000: (1.962, 2.581),
    99_999: (1.960, 2.576),
}


@pytest.mark.parametrize(("df", "values"), TABLE.items())
def test_quantiles_are_those_of_the_tables(df: int, values: tuple[float, float]) -> None:
    assert confidence.quantile(df) == pytest.approx(values[0], abs=6e-4)
    assert confidence.quantile(df, 0.99) == pytest.approx(values[1], abs=6e-4)


@pytest.mark.parametrize("df", [3, 8, 199, 200, 201])
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
    assert 2 * area * step / 3 == pytest.approx(0.95, abs=1e-8)


def test_an_interval_by_hand() -> None:
    # Mean 5, squared deviations 9 + 1 + 1 + 9, so s = sqrt(20 / 3); t(3) = 3.18245.
    found = confidence.interval_of([2.0, 4.0, 6.0, 8.0])
    assert found.mean == 5.0
    assert found.std == pytest.approx(2.5819889)
    assert found.low == pytest.approx(5.0 - 4.1085199)
    assert found.high == pytest.approx(5.0 + 4.1085199)


def test_one_value_alone_has_no_spread() -> None:
    assert confidence.interval_of([7.0]) == (7.0, None, None, None)


def test_equal_values_have_none_either() -> None:
    assert confidence.interval_of([3.0] * 5) == (3.0, 3.0, 3.0, 0.0)
