"""Dates that an instructor writes, and how they are said again: in the zone in which they were written.

2026-03-01 23:59 Europe/Berlin    a city's time, summer time included
2026-03-01 23:59 +0100
2026-03-01 23:59                  this machine's time
"""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from dateutil import parser
from dateutil.parser import UnknownTimezoneWarning

EXAMPLE = "2026-03-01 23:59 Europe/Berlin, or +0100 in the place of the city"
_CITY = re.compile(r"\s+([A-Z][A-Za-z_-]+(?:/[A-Z][A-Za-z_+-]+)+)\s*\Z")


def read_date(text: str) -> datetime:
    """The moment, with its zone.

    Raises:
        ValueError: no date, or a zone that nobody knows.
    """
    city = _CITY.search(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnknownTimezoneWarning)  # CET is read as this machine's time else
            when = parser.parse(text[: city.start()] if city else text)
        if city:
            return when.replace(tzinfo=ZoneInfo(city[1]))
        return when if when.tzinfo else when.astimezone()
    except (KeyError, OverflowError, UnknownTimezoneWarning) as error:  # of a city, of a number, of letters
        raise ValueError(f"no date: {text!r}") from error


def shown(when: datetime) -> str:
    """`2026-03-01 23:59 Europe/Berlin`, `... +0100` or `... UTC`."""
    zone = getattr(when.tzinfo, "key", None) or ("UTC" if when.tzname() == "UTC" else f"{when:%z}")
    return f"{when:%Y-%m-%d %H:%M} {zone}"


def utc(when: datetime) -> datetime:
    """For sums: two times of one city are subtracted by their clock, whatever happened to it between them."""
    return when.astimezone(timezone.utc)
