"""Text and dates of tables become the same numbers for every door."""

from __future__ import annotations

import numpy as np
import pytest

from pathgp.data.tabular import convert_columns, find_categories, find_columns

pd = pytest.importorskip("pandas")


def test_a_frame_is_converted_as_at_the_fit() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "soil": ["sand", "clay"], "day": ["1970-01-02", "1970-01-04"]})
    columns = find_columns(frame)
    assert columns.inputs == ["x", "soil=clay", "soil=sand", "day (days)"]
    np.testing.assert_array_equal(convert_columns(frame, columns), [[1, 0, 1, 1], [2, 1, 0, 3]])
    turned = frame[::-1].assign(day=pd.to_datetime(frame["day"]))
    np.testing.assert_array_equal(convert_columns(turned, columns), [[2, 1, 0, 3], [1, 0, 1, 1]])


def test_an_array_of_times_is_converted_to_days() -> None:
    times = np.array([[36, 12], [24, 48]], dtype="timedelta64[h]")
    columns = find_columns(times)
    assert columns.dates == [0, 1]
    np.testing.assert_array_equal(convert_columns(times, columns), [[1.5, 0.5], [1.0, 2.0]])
    with pytest.raises(ValueError, match="fitted as a frame or as times, got ndarray of float64"):
        convert_columns(np.zeros((2, 2)), columns)


def test_dates_of_another_kind_are_refused() -> None:
    days = pd.date_range("2020-01-01", periods=3)
    spans = pd.Series(pd.to_timedelta([1, 2, 3], unit="D"))
    zoned = [day.isoformat() + "+09:00" for day in days]
    columns = find_columns(pd.DataFrame({"day": days, "span": spans, "zoned": zoned}))
    for name, values, now in (
        ("day", spans, "times without a zone at the fit and holds time spans now"),
        ("day", zoned, "times without a zone at the fit and holds times with a zone now"),
        ("span", days, "time spans at the fit and holds times without a zone now"),
        ("zoned", days, "times with a zone at the fit and holds times without a zone now"),
    ):
        frame = pd.DataFrame({"day": days, "span": spans, "zoned": zoned}).assign(**{name: values})
        with pytest.raises(ValueError, match=f"column '{name}' held {now}"):
            convert_columns(frame, columns)
    # Texts without a zone and times of NumPy are of one kind.
    frame = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "span": spans, "zoned": zoned})
    np.testing.assert_array_equal(convert_columns(frame, columns)[:, 0], 18262 + np.arange(3))


def test_numbers_have_nothing_to_convert() -> None:
    assert find_columns(np.zeros((2, 3))).names == []
    columns = find_columns(pd.DataFrame({"a": [1, 2]}))
    assert (columns.categories, columns.dates) == ({}, [])


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["01/02/2024", "02/02/2024"], "seems to hold dates such as '01/02/2024': write them as 2024-03-31, ADVICE"),
        ([f"id {i}" for i in range(101)] * 2, "'t' holds text, 101 different values such as 'id 0': .*, ADVICE"),
        ([f"{i} %" for i in [*range(21), *range(20)]], "'t' holds text, 21 different values such as '0 %': .*, ADVICE"),
    ],
)
def test_text_that_is_no_category_is_refused_unless_the_user_insists(values: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        find_categories("t", values, False, "ADVICE")
    assert find_categories("t", values, True, "ADVICE") == sorted(set(values))
