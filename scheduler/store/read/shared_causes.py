"""Causes of failures above kinds: one outage over sixteen kinds is one cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from scheduler.model.outcome import AttemptEnd
from scheduler.model.redact import redact
from scheduler.model.rollup import MINUTE, Measure
from scheduler.model.secrets import hide_in
from scheduler.model.texts import counted, listed
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.read.stats import FAILURES
from scheduler.store.rollups import FINISHED, floor

SHOWN = 5  # causes whose errors are read
NAMED = 3  # kinds that a sentence names
FAILING_WITHIN = 600 * SECOND
FAILING_ATTEMPTS, FAILING_SHARE = 20, 0.9
_NEWEST = 500  # failed attempts that are looked at for what they have in common


class SharedCause(NamedTuple):
    """Dead letters of one cause, of whichever kinds, the most first. ``error``, ``id``: of the newest task.

    ``fingerprint``: of the only kind, if there is one; else None. ``fingerprints``: of all kinds.
    """

    number: int
    kinds: tuple[str, ...]
    error_class: str | None
    error: str | None
    id: int
    oldest: int
    newest: int
    fingerprint: str | None
    fingerprints: tuple[str, ...] = ()

    def of_kinds(self) -> str:
        """``Mail``, ``16 kinds (Mail, Report and others)``."""
        return kinds_text(self.kinds)


class SharedCauses(NamedTuple):
    """The causes, the largest first; ``number``: their dead letters; ``whole``: these are all there are."""

    causes: list[SharedCause]
    number: int
    whole: bool


def kinds_text(kinds: tuple[str, ...]) -> str:
    """``Mail``, ``16 kinds (Mail, Report and others)``."""
    if len(kinds) == 1:
        return kinds[0]
    return f"{len(kinds)} kinds ({listed([*kinds[:NAMED], *(['others'] if len(kinds) > NAMED else [])])})"


def shared_causes(tx: Tx) -> SharedCauses:
    """The causes of the newest dead letters, over all kinds. The errors of the largest are for anybody to read."""
    from scheduler.store.read.dead_causes import causes

    found = causes(tx)
    made = merged(found.causes)
    shown = [one._replace(error=hidden(tx, one.kinds[0], one.id, one.error)) for one in made[:SHOWN]]
    rest = [one._replace(error=None) for one in made[SHOWN:]]
    return SharedCauses([*shown, *rest], sum(one.number for one in found.causes), found.whole)


def hidden(tx: Tx, kind: str, task_id: int, error: str | None) -> str:
    """The error of a task without its secrets, as a line that anybody may read."""
    from scheduler.store.masks import masks
    from scheduler.store.read.history import attempts

    text, mask = error or "no error recorded", masks(tx, [kind]).get(kind)
    if mask is not None:
        payload = tx.run("SELECT payload FROM schedd_tasks WHERE id = :id", id=task_id).scalar()
        before = (one.envelope.payload for one in attempts(tx, task_id))
        text = str(hide_in(text, mask.secrets(payload, *before)))
    text = redact(" ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class OfKind(Protocol):
    """Dead letters of one kind and cause."""

    @property
    def kind(self) -> str: ...
    @property
    def error_class(self) -> str | None: ...
    @property
    def number(self) -> int: ...


class CauseLetters(OfKind, Protocol):
    """The same with the newest of them, and when they died."""

    @property
    def fingerprint(self) -> str | None: ...
    @property
    def id(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def oldest(self) -> int: ...
    @property
    def newest(self) -> int: ...


T = TypeVar("T", bound=OfKind)


def by_common_text(found: Iterable[T], error_of: Callable[[T], str | None]) -> list[tuple[str, list[T]]]:
    """Causes of single kinds that have their error in common, with what they have in common; the most first. One kind's
    own causes stay apart."""
    groups: dict[tuple[str | None, str], list[T]] = {}
    for one in found:
        groups.setdefault((one.error_class, common_text(one.error_class, error_of(one))), []).append(one)
    made: list[tuple[str, list[T]]] = []
    for (_, text), several in groups.items():
        several.sort(key=lambda one: (-one.number, one.kind))
        parts = [several] if len({one.kind for one in several}) > 1 else [[one] for one in several]
        made += [(text, part) for part in parts]
    return made


def merged(found: Iterable[CauseLetters]) -> list[SharedCause]:
    """Causes of single kinds that have their error in common, as one."""
    made = [_shared(part) for _, part in by_common_text(found, lambda one: one.error)]
    return sorted(made, key=lambda one: (-one.number, -one.newest))


def over_kinds(tx: Tx, found: Iterable[CauseLetters], kind: str | None = None) -> list[SharedCause]:
    """Those of several kinds, the largest first, their errors for anybody to read. ``kind``: with letters of it."""
    made = [one for one in merged(found) if len(one.kinds) > 1 and kind in (None, *one.kinds)][:SHOWN]
    return [one._replace(error=hidden(tx, one.kinds[0], one.id, one.error)) for one in made]


def _shared(several: list[CauseLetters]) -> SharedCause:
    newest = max(several, key=lambda one: one.newest)
    return SharedCause(
        sum(one.number for one in several),
        tuple(dict.fromkeys([newest.kind, *(one.kind for one in several)])),
        newest.error_class,
        newest.error,
        newest.id,
        min(one.oldest for one in several),
        newest.newest,
        several[0].fingerprint if len(several) == 1 else None,
        tuple(one.fingerprint for one in several if one.fingerprint),
    )


class Failing(NamedTuple):
    """Kinds of which nearly each attempt fails, of one cause. ``failed`` of ``ended`` attempts; ``tasks``: some."""

    kinds: tuple[str, ...]
    failed: int
    ended: int
    since: int
    error: str
    tasks: tuple[int, ...]


def failing(tx: Tx) -> list[Failing]:
    """What fails on a large scale: kinds whose last attempts nearly all failed, by what they have in common."""
    since = floor(tx.now - FAILING_WITHIN, MINUTE)
    ends, bad = (", ".join(str(end.code) for end in group) for group in (FINISHED, FAILURES))
    rows = tx.run(
        "SELECT kind, sum(number) AS ended, "
        f"sum(CASE WHEN outcome IN ({bad}) THEN number ELSE 0 END) AS failed FROM schedd_rollups "
        f"WHERE span = {MINUTE} AND at >= :since AND measure = {int(Measure.RUN)} AND outcome IN ({ends}) "
        "GROUP BY kind",
        since=since,
    ).fetchall()
    wrong = {row.kind: row for row in rows if row.failed and int(row.failed) >= FAILING_SHARE * int(row.ended)}
    if sum(int(row.ended) for row in wrong.values()) < FAILING_ATTEMPTS:
        return []
    codes = (AttemptEnd.FAILED.code, AttemptEnd.DEAD.code)
    newest = tx.run(
        "SELECT t.kind, a.task_id, a.error, a.error_class, a.finished_at FROM "
        "(SELECT task_id, error, error_class, finished_at FROM schedd_attempts "
        f"WHERE outcome >= 1 AND outcome <= {max(codes)} AND finished_at >= :since "
        f"ORDER BY finished_at DESC LIMIT {_NEWEST}) a JOIN schedd_tasks t ON t.id = a.task_id "
        "ORDER BY a.finished_at DESC",
        since=since,
    ).fetchall()
    groups: dict[tuple[str | None, str], list[int]] = {}
    for place, row in enumerate(newest):
        if row.kind in wrong:
            groups.setdefault((row.error_class, common_text(row.error_class, row.error)), []).append(place)
    found, said = [], set[str]()
    for places in sorted(groups.values(), key=len, reverse=True):
        kinds = tuple(dict.fromkeys(newest[place].kind for place in places if newest[place].kind not in said))
        ended = sum(int(wrong[kind].ended) for kind in kinds)
        if ended < FAILING_ATTEMPTS:
            continue
        said.update(kinds)
        failed, first = sum(int(wrong[kind].failed) for kind in kinds), newest[places[0]]
        began = min(newest[place].finished_at for place in places)
        tasks = tuple(dict.fromkeys(newest[place].task_id for place in places))[:5]
        found.append(Failing(kinds, failed, ended, began, hidden(tx, first.kind, first.task_id, first.error), tasks))
    return found


def failing_text(one: Failing) -> str:
    """``160 of 160 attempts of 16 kinds (…) failed lately: ConnectError: …``."""
    return (
        f"{one.failed} of {counted(one.ended, 'attempt')} of {kinds_text(one.kinds)} failed within 10 min: {one.error}"
    )


LONGEST = 200
_VARIES = (  # compiled at the first error
    (r"(?i)\b[a-z][a-z0-9+.-]*://\S+", "URL"),
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…"),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\b[\w.+-]+@[\w-]+(\.[\w-]+)+\b", "ADDRESS"),
    (r"(?i)\[?\b[0-9a-f]{0,4}(:[0-9a-f]{0,4}){3,7}\b\]?(:\d+)?", "HOST"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "HOST"),
    (r"(?i)\b(?=[a-z0-9-]*[a-z])[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}(:\d+)?\b(?!\()", "HOST"),
    (r"(?i)\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b", "ID"),
    (r"(?<![A-Za-z])[-+]?\d+([.,]\d+)*", "N"),
)
_STATUS = r"(?<=status )[1-5]\d\d\b|(?<=answered )[1-5]\d\d\b|(?<=code )\d{1,3}\b|(?<=HTTP )[1-5]\d\d\b"
_ASIDE = str.maketrans("0123456789", "".join(chr(0xE000 + digit) for digit in range(10)))  # no text has these
_BACK = {there: chr(here) for here, there in _ASIDE.items()}


def common_text(error_class: str | None, error: str | None) -> str:
    """The error without ids, numbers, hosts, addresses and quoted values; status and exit codes stay.

    ``TimeoutError: no answer from HOST within N s``.
    """
    text = " ".join((error or error_class or "no error recorded").split())
    text = re.sub(_STATUS, lambda found: found.group().translate(_ASIDE), text)
    for pattern, name in _VARIES:
        text = re.sub(pattern, name, text)
    return text.translate(_BACK)[:LONGEST]
