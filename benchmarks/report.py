"""The results as a table in Markdown: medians with least and most, ratios of the same rounds, and the bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from works import MEANINGS, WORKS, Bar

Line = dict[int, Any]  # round -> what the contender gave
Results = dict[tuple[str, str], dict[str, Line]]  # (work, database) -> who -> line
OURS = ("schedd", "raw")


def numbers(line: Line, measure: str = "") -> dict[int, float]:
    """One number a round. ``measure``: "" for a rate, else as in :class:`works.Bar`."""
    found = {}
    for round_, value in line.items():
        if isinstance(value, list):
            value = {"ms": value}
        if not isinstance(value, dict):
            value = {"rate": value}
        if measure in ("p50", "p99"):
            found[round_] = percentile(value["ms"], int(measure[1:]))
        else:
            found[round_] = float(value[measure or "rate"])
    return found


def percentile(values: Iterable[float], per_cent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * per_cent // 100)]


def ratios(ours: Line, theirs: Line, measure: str = "") -> list[float]:
    """Of the rounds that both were in."""
    a, b = numbers(ours, measure), numbers(theirs, measure)
    return [a[r] / b[r] for r in a.keys() & b.keys()]


def peers(by_who: dict[str, Line]) -> list[str]:
    return [who for who in by_who if who.partition(",")[0].partition(" ")[0] not in OURS]


def reached(bar: Bar, by_who: dict[str, Line]) -> tuple[float, str] | None:
    """What the bar is about, as a median over the rounds, and of whom; None if it was not measured."""
    ours = by_who.get(bar.who)
    if not ours:
        return None
    if not bar.by:
        return statistics.median(numbers(ours, bar.measure).values()), ""
    others = peers(by_who) if bar.by == "every peer" else [bar.by]
    each = [
        (statistics.median(r), who) for who in others if who in by_who and (r := ratios(ours, by_who[who], bar.measure))
    ]
    return (max if bar.most else min)(each, default=None)  # by the best peer


def judge(bar: Bar, by_who: dict[str, Line]) -> tuple[str, bool | None]:
    """A sentence, and whether it is met; None if it cannot be told."""
    found = reached(bar, by_who)
    if found is None:
        return f"{bar}: not measured", None
    value, whom = found
    met = value <= bar.bound if bar.most else value >= bar.bound
    said = f"{value:,.{_digits(value)}f}{f' × {whom}' if bar.by == 'every peer' else ''}"
    return f"{bar}: {'met' if met else 'not met'} ({said})", met


def _digits(value: float) -> int:
    return 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2


def spread(values: Iterable[float]) -> str:
    found = list(values)
    middle = statistics.median(found)
    digits = _digits(middle)
    least, most = f"{min(found):,.{digits}f}", f"{max(found):,.{digits}f}"
    return f"{middle:,.{digits}f} ({least}–{most})" if len(found) > 1 else f"{middle:,.{digits}f}"


def figures(work: str, line: Line) -> str:
    first = next(iter(line.values()))
    if isinstance(first, list):
        first = {"ms": first}
    if not isinstance(first, dict) or "rate" in first:
        return f"{spread(numbers(line).values())} {WORKS[work].unit}".strip()
    said = []
    for name in first:
        if name == "ms":
            said += [f"{p} {spread(numbers(line, p).values())} ms" for p in ("p50", "p99")]
        else:
            unit = {"first": " s", "memory": " MiB"}.get(name, "")
            said.append(f"{name} {spread(numbers(line, name).values())}{unit}")
    return ", ".join(said)


def _ratio(work: str, database: str, who: str, by_who: dict[str, Line]) -> str:
    """Of schedd's rate by this one's; of one of schedd's variants by what it is compared with."""
    if WORKS[work].unit != "/s":
        return ""
    base = next((bar.by for bar in WORKS[work].bars.get(database, ()) if bar.who == who and "schedd" in bar.by), "")
    if who.startswith("schedd"):
        found = ratios(by_who[who], by_who[base]) if base in by_who else []
        return f"{spread(found)} of {base}" if found else ""
    found = ratios(by_who["schedd"], by_who[who]) if "schedd" in by_who else []
    return spread(found) if found else ""


def table(results: Results) -> str:
    """Markdown, to be pasted into docs/explanation/performance.md."""
    lines = [
        "| work | database | who | median (least–most) | rounds | schedd by it | bars |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (work, database), by_who in results.items():
        bars = WORKS[work].bars.get(database, ())
        for who, line in by_who.items():
            if not line:
                continue
            said = "; ".join(judge(bar, by_who)[0] for bar in bars if bar.who == who)
            ratio = _ratio(work, database, who, by_who)
            lines.append(f"| {work} | {database} | {who} | {figures(work, line)} | {len(line)} | {ratio} | {said} |")
    verdicts = [judge(bar, by_who) for (w, d), by_who in results.items() for bar in WORKS[w].bars.get(d, ())]
    met = sum(1 for _, verdict in verdicts if verdict)
    told = sum(1 for _, verdict in verdicts if verdict is not None)
    lines += ["", f"{met} of {told} bars met; {len(verdicts) - told} not measured."]
    missed = [
        f"- {work}, {database}, {bar.who}: {text}"
        for (work, database), by_who in results.items()
        for bar in WORKS[work].bars.get(database, ())
        for text, verdict in [judge(bar, by_who)]
        if not verdict
    ]
    return "\n".join([*lines, *(["", *missed] if missed else [])])


def meanings(names: Iterable[str]) -> str:
    return "\n".join(f"- {name}: {MEANINGS[name]}" for name in names)
