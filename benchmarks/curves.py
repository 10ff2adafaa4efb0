"""How cost grows: microseconds a task over backlog, edges, payload and pool width.

Draws docs/explanation/growth.svg.

  backlog    10³ to 10⁶ due no-ops are stored; the first thousands are drained
  edges      tasks with 0 to 30 parents each in the layer above, stored in one batch and drained
  payload    100 B to 100 KB of payload, stored in one batch and drained
  width      1 to 64 threads in the pool: no-ops, and handlers that sleep 5 ms

Each point is the median of --runs processes, on databases of their own, rounds interleaved; bars are the least and the
most. The slope of each curve is that of a straight line through its points, both axes logarithmic (for edges from one
on): 0 is a cost that does not grow, 1 one that grows as its cause does, -1 perfect sharing.

    python benchmarks/curves.py [--runs 3] [--databases sqlite,postgresql] [--quick] [--out docs/explanation/growth.svg]
        [--json FILE] [--draw FILE] [--put]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[1]
POINTS: dict[str, tuple[int, ...]] = {
    "backlog": (1_000, 10_000, 100_000, 1_000_000),
    "edges": (0, 1, 3, 10, 30),
    "payload": (100, 1_000, 10_000, 100_000),
    "width": (1, 2, 4, 8, 16, 32, 64),
}
QUICK = {"backlog": (1_000, 10_000), "edges": (0, 3, 30), "payload": (100, 10_000), "width": (1, 8, 64)}
TITLES = {
    "backlog": "Backlog: drained from so many",
    "edges": "Edges: a graph in layers of 100",
    "payload": "Payload",
    "width": "Width of the pool",
}
LABELS = {
    "backlog": "due tasks stored",
    "edges": "parents of each task",
    "payload": "bytes of payload",
    "width": "threads in the pool",
}
DRAINED = 10_000  # of a backlog, at most
Found = dict[str, dict[str, dict[int, list[float]]]]  # panel -> curve -> x -> microseconds a task, by run


def backlog(url: str, x: int) -> dict[str, float]:
    from contenders import schedd
    from contenders.schedd_stored import settle, store

    jobs = schedd.scheduler(url)
    store(jobs, x, "due")
    settle(jobs, url)
    jobs = schedd.scheduler(url)
    return {"drain": _drained(jobs, min(x, DRAINED))}


def edges(url: str, x: int) -> dict[str, float]:
    from contenders import schedd

    jobs, size = schedd.scheduler(url), 3_000
    wanted = schedd.parents_of(size, x)
    stored = _timed(lambda: schedd._store(jobs, size, schedd.noop, wanted, size)) / size
    return {"store": stored, "drain": _drained(jobs, size)}


def payload(url: str, x: int) -> dict[str, float]:
    from contenders import schedd

    jobs = schedd.scheduler(url)
    size, text = min(3_000, 30_000_000 // x), "x" * (x - 18)

    def fill() -> None:
        with jobs.batch() as batch:
            for n in range(size):
                batch.task(schedd.noop, n, text)

    stored = _timed(fill) / size
    return {"store": stored, "drain": _drained(jobs, size)}


def width(url: str, x: int) -> dict[str, float]:
    from contenders import schedd

    found = {}
    for name, kind, size in (("no-op", schedd.noop, 5_000), ("sleeps 5 ms", schedd.sleeper, max(200, 100 * x))):
        schedd.ran = 0
        jobs = schedd.scheduler(url, pools={"medium": (x, 0), "low": (0, 0)})
        schedd.fill(jobs, size, kind)
        found[name] = _drained(jobs, size)
        jobs.close()
    return found


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e6


def _drained(jobs: Any, size: int) -> float:
    """Microseconds a task until the first ``size`` have run."""
    from contenders import schedd

    schedd.as_the_daemon_does()
    with jobs:
        assert jobs.engine.wait_ready(60)
        begun, already = time.perf_counter(), schedd.ran
        if already > size // 2:  # the first cycle has taken most of it
            begun, already = begun - 1e-9, 0
        while schedd.ran < size:
            time.sleep(0.001)
        return (time.perf_counter() - begun) * 1e6 / (size - already)


PANELS = {"backlog": backlog, "edges": edges, "payload": payload, "width": width}


def slope(points: dict[int, list[float]]) -> float:
    """Of the line through the medians, both axes logarithmic."""
    pairs = [(math.log(x), math.log(statistics.median(ys))) for x, ys in points.items() if x > 0]
    mx, my = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return sum((x - mx) * (y - my) for x, y in pairs) / sum((x - mx) ** 2 for x, _ in pairs)


def measure(args: argparse.Namespace) -> Found:
    import servers

    found: Found = {panel: {} for panel in PANELS}
    points = QUICK if args.quick else POINTS
    with contextlib.ExitStack() as stack:
        context = {"sqlite": servers.sqlite, "postgresql": servers.postgresql}
        urls = {database: stack.enter_context(context[database]()) for database in args.databases.split(",")}
        for server in urls.values():
            print(servers.settings(server))
        for run in range(args.runs):
            for panel in PANELS:
                for x in points[panel]:
                    for database, server in urls.items():
                        with servers.fresh(server) as url:
                            command = [sys.executable, __file__, "--one", panel, url, str(x)]
                            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
                        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                            curve = found[panel].setdefault(f"{name}, {database}", {})
                            curve.setdefault(x, []).append(value)
            print(f"run {run + 1} of {args.runs}", file=sys.stderr, flush=True)
    return found


def draw(found: Found, out: Path) -> None:
    """Four panels with logarithmic axes, the slope of each curve in its legend."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "schedd", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    colours = {"sqlite": "#0b6e99", "postgresql": "#c2571a"}
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.2), constrained_layout=True)
    for axis, (panel, curves) in zip(axes.flat, found.items(), strict=True):
        for name, points in sorted(curves.items(), key=lambda item: (item[0].rpartition(", ")[0], item[0])):
            what, _, database = name.rpartition(", ")
            xs = sorted(points)
            middle = [statistics.median(points[x]) for x in xs]
            down = [m - min(points[x]) for m, x in zip(middle, xs, strict=True)]
            up = [max(points[x]) - m for m, x in zip(middle, xs, strict=True)]
            dashed = what in ("store", "sleeps 5 ms")
            axis.errorbar(
                xs,
                middle,
                yerr=[down, up],
                color=colours.get(database),
                linestyle="--" if dashed else "-",
                marker="s" if dashed else "o",
                markersize=4,
                capsize=2,
                linewidth=1.4,
                label=f"{name}: slope {slope(points):+.2f}",
            )
        if panel == "edges":
            axis.set_xscale("symlog", linthresh=1)
        else:
            axis.set_xscale("log", base=2 if panel == "width" else 10)
        axis.set_yscale("log")
        if panel in ("edges", "width"):
            every = sorted({x for points in curves.values() for x in points})
            axis.set_xticks(every, [str(x) for x in every])
            axis.minorticks_off()
        low, high = axis.get_ylim()
        axis.set_ylim(low / 1.3, high * 2.2)  # room for the legend
        axis.set_xlabel(LABELS[panel])
        axis.set_ylabel("µs a task")
        axis.set_title(TITLES[panel])
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=8, loc="upper right" if panel == "width" else "upper left", framealpha=0.9)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def table(found: Found) -> str:
    lines = ["| curve | slope | µs a task, from the first point to the last |", "| --- | --- | --- |"]
    for panel, curves in found.items():
        for name, points in sorted(curves.items()):
            told = ", ".join(f"{x:,}: {statistics.median(points[x]):,.0f}" for x in sorted(points))
            lines.append(f"| {panel}: {name} | {slope(points):+.2f} | {told} |")
    return "\n".join(lines)


def warm_up(url: str) -> None:
    """A thousand tasks first: what a process does once only is no part of any curve."""
    from contenders import schedd

    jobs = schedd.scheduler(url)
    schedd.fill(jobs, 1_000)
    _drained(jobs, 1_000)
    jobs.close()
    schedd.ran = 0


def main() -> None:
    if len(sys.argv) == 5 and sys.argv[1] == "--one":
        warm_up(sys.argv[3])
        print(json.dumps(PANELS[sys.argv[2]](sys.argv[3], int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--quick", action="store_true", help="few and small points")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "growth.svg", help=".svg or .png")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--draw", type=Path, help="draw the figures of such a file")
    parser.add_argument("--put", action="store_true", help="also put the table into its page")
    args = parser.parse_args()
    if args.draw:
        told = json.loads(args.draw.read_text())
        found: Found = {
            panel: {name: {int(x): ys for x, ys in points.items()} for name, points in curves.items()}
            for panel, curves in told.items()
        }
    else:
        found = measure(args)
    if args.json and not args.draw:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    if args.put:
        pages.put("curves", table(found))
    draw(found, args.out)


if __name__ == "__main__":
    main()
