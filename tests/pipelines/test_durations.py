"""Lengths of time as people write them: one parser for the command line and ``lakehouses.yaml``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_project.config.values import format_duration, parse_duration
from trinitylake_core import InvalidInput
from trinitylake_core.durations import DAY, describe_duration, millis, parse_age
from trinitylake_core.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), (" 12h ", 43_200), ("3d", 3 * DAY), ("2w", 14 * DAY), ("250ms", 0.25), ("0s", 0)],
)
def test_a_text_means_seconds(text: str, seconds: float) -> None:
    assert seconds == parse_age(text)


@pytest.mark.parametrize("text", ["", "3", "d", "-1d", "1.5h", "1d12h", "3 d", "3D", "1234567890s", "\u0663d"])
def test_what_is_no_length_of_time_is_refused_as_input_and_as_a_value(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 15m, 12h, 3d or 2w"):
        parse_age(text)


@given(st.integers(0, 10**9))
def test_what_is_shown_means_the_same_again(milliseconds: int) -> None:
    assert milliseconds == millis(parse_age(describe_duration(milliseconds / 1000)))


@pytest.mark.parametrize("text", ["36501d", "99999999w", "999999999w"])
def test_an_age_beyond_every_calendar_is_refused(text: str) -> None:
    """What is accepted can be added to any date of this century; ``lakehouses.yaml`` accepts no more."""
    with pytest.raises(InvalidInput, match="is too long"):
        parse_age(text)
    with pytest.raises(ValueError, match="is not a valid duration"):
        parse_duration(text)
    assert datetime(2099, 1, 1, tzinfo=UTC) + parse_duration("36500d")


@pytest.mark.parametrize("text", ["90s", "15m", "12h", "3d", "2w", "250ms"])
def test_lakehouses_yaml_reads_what_the_command_line_reads(text: str) -> None:
    """One parser; what is printed is read back as the same."""
    assert timedelta(seconds=parse_age(text)) == parse_duration(text)
    assert parse_duration(text) == parse_duration(format_duration(parse_duration(text)))


# -- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1", 1),
        ("12B", 12),
        (" 64KiB ", 65_536),
        ("256 MiB", 256 << 20),
        ("1.5GiB", 3 << 29),
        ("2TiB", 2 << 40),
    ],
)
def test_a_text_means_bytes(text: str, size: int) -> None:
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "256mb", "1,5GiB", "1GiB 2MiB", "\u0663MiB", "9" * 19])
def test_what_is_no_size_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInput, match="256MiB"):
        parse_size(text)


def test_a_size_beyond_every_file_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large"):
        parse_size("99999999PiB")
