"""Checks the line that a file gets which cannot be written."""

import errno

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.writing import writing


@pytest.mark.parametrize(
    ("advice", "line"),
    [
        ("", "cannot write a.json: No space left on device"),
        ("choose another", "cannot write a.json: No space left on device; choose another"),
    ],
)
def test_the_line_names_the_file_and_why(advice: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught, writing("a.json", advice):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == line


def test_an_error_without_a_number_is_told_as_it_is() -> None:
    with (
        pytest.raises(ConfigError, match=r"cannot write a\.json: it is a picture"),
        writing("a.json"),
    ):
        raise OSError("it is a picture")


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), writing("a.json"):
        raise ValueError("mine")
