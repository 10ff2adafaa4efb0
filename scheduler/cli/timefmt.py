"""Times as people read them: in their zone, and how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from scheduler.errors import InvalidScheduleError

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def zone_of(name: str) -> tzinfo | None:
    """The zone with this name; ``local`` is the system's, None stands for it. Raises ValueError."""
    if name.lower() == "local":
        return None
    if name.upper() == "UTC":
        return UTC
    from scheduler.model import zoned

    try:
        return zoned.zone_of(name)
    except InvalidScheduleError as error:
        raise ValueError(str(error)) from None


def instant_of(text: object) -> datetime | None:
    """The instant that a text such as 2026-01-31T02:30:00.000000Z says; None for any other value."""
    if isinstance(text, str) and len(text) in (20, 27) and text[10] == "T" and text.endswith("Z"):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return None
    return None


def shown(instant: datetime, zone: tzinfo | None) -> str:
    """To the second, in this zone; that is enough for people."""
    text = instant.astimezone(zone).replace(microsecond=0).isoformat()
    return text.replace("+00:00", "Z") if zone is UTC else text


def short(instant: datetime, zone: tzinfo | None, now: datetime) -> str:
    """The same in few characters, without the date of today or the year of this one: ``02:30:00``, ``01-31 02:30``."""
    here, today = instant.astimezone(zone), now.astimezone(zone)
    if here.date() == today.date():
        return here.strftime("%H:%M:%S")
    return here.strftime("%m-%d %H:%M" if here.year == today.year else "%Y-%m-%d")


def distance(instant: datetime, now: datetime) -> str:
    """``3 min 20 s ago``, ``in 2 h``."""
    from scheduler.model.texts import span_text

    span = round((now - instant).total_seconds()) * 1_000_000
    if span == 0:
        return "now"
    return f"{span_text(span)} ago" if span > 0 else f"in {span_text(span)}"


def brief(seconds: float) -> str:
    """About how long in few characters: ``45s``, ``12m``, ``3h``, ``5d``."""
    whole = max(0, int(seconds))
    unit, size = next(((unit, size) for unit, size in _UNITS if whole >= size), ("s", 1))
    return f"{whole // size}{unit}"
