"""``schedctl graph``, and ``schedctl compare``: a run beside an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.echo import say
from scheduler.cli.options import TASK_ID, Number, common
from scheduler.cli.output import cell, print_object, print_table
from scheduler.cli.polling import watchable
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from scheduler.model.critical_path import Estimate
    from scheduler.operations.analysis import GraphNode, StoredGraph


PATH_SHOWN = 12  # tasks of the longest path that are named
FOLDED = 4  # tasks that are alike are drawn as one from this number on
_SHAPES = {"success": "#9be89b", "running": "#9bdfe8", "failed": "#f2a6a6", "dead": "#f2a6a6"}


_COMPARE_FIELDS = ("task", "other", "time", "other_time", "roles", "payload", "log", "truncated")


@click.command(name="graph")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@click.option(
    "--format",
    "style",
    type=click.Choice(("tree", "dot", "mermaid", "json")),
    default="tree",
    show_default=True,
    help="dot is for Graphviz, mermaid for Markdown.",
)
@click.option("--all", "every", is_flag=True, help="Draw each task; otherwise many tasks that are alike are one line.")
@click.option("--limit", type=Number(1, 10_000), default=200, show_default=True, help="At most this many tasks.")
@common
@prints(("nodes", "edges", "truncated", "estimate"))
@watchable
def graph_command(session: Session, /, task_id: int, style: str, limit: int, every: bool) -> None:
    """The tasks that edges connect with a task, directly or not, when they may have ended, and what blocks most."""
    from scheduler.client.analysis import estimate_view, graph_view
    from scheduler.operations.analysis import graph, graph_estimate

    if style in ("dot", "mermaid") and (session.output != "table" or session.columns is not None):
        raise click.UsageError(f"--format {style} goes with neither -o json nor --columns")
    with session.existing().read() as tx:
        found = graph(tx, task_id, limit)
        left = graph_estimate(tx, found)
    if found.truncated:
        note(f"there are more than {limit} tasks: these are the nearest; --limit shows more")
    if style == "json" and session.output == "table":
        session.output = "json"
    if style in ("tree", "json") and print_object(session, graph_view(found) | {"estimate": estimate_view(left)}):
        return
    if style == "tree":
        for text in _estimate_texts(left):
            note(text)
    folded = found if every else _fold(found, task_id)
    say("\n".join({"dot": _dot, "mermaid": _mermaid}.get(style, _tree)(folded)))


def _estimate_texts(left: Estimate) -> list[str]:
    """A sentence about the tasks that are left."""
    from scheduler.model.texts import counted, listed, span_text

    texts = []
    if left.low is not None:
        most = f"at most {span_text(left.high)}" if left.high is not None else f"no upper bound: {_without_bound(left)}"
        texts.append(f"{counted(left.remaining, 'task')} left: at least {span_text(left.low)}, {most}")
    if left.low is not None and len(left.path) > 1:
        texts.append(
            f"longest path: {' > '.join(map(str, left.path[:PATH_SHOWN]))}{' > …' * (len(left.path) > PATH_SHOWN)}"
        )
    first = left.blockers[0] if left.blockers else None
    if first is not None and first.below > 1:
        texts.append(f"{counted(first.below, 'task')} come after task {first.id}")
    if left.stuck:
        never = listed(list(map(str, left.stuck)))
        texts.append(f"{counted(len(left.stuck), 'task')} can never run, because parents ended otherwise: {never}")
    return texts


def _without_bound(left: Estimate) -> str:
    from scheduler.model.texts import counted

    if left.unknown:
        return f"{counted(left.unknown, 'task')} of kinds that have not run lately"
    return "it waits for an event"


def _fold(found: StoredGraph, asked: int) -> StoredGraph:
    """The same with one node for tasks of one kind and state, with the same parents and children; but for ``asked``."""
    above: dict[int, set[tuple[int, str]]] = {}
    below: dict[int, set[tuple[int, str]]] = {}
    for edge in found.edges:
        above.setdefault(edge.child, set()).add((edge.parent, edge.when))
        below.setdefault(edge.parent, set()).add((edge.child, edge.when))
    alike: dict[Any, list[GraphNode]] = {}
    for node in sorted(found.nodes):
        edges = (frozenset(above.get(node.id, ())), frozenset(below.get(node.id, ())))
        alone = node.id if node.id == asked or not any(edges) else None
        alike.setdefault((node.kind, node.state, edges, alone), []).append(node)
    gone: set[int] = set()
    nodes = []
    for group in alike.values():
        first, last = group[0], group[-1]
        if len(group) < FOLDED:
            nodes += group
            continue
        gone.update(node.id for node in group[1:])
        nodes.append(first._replace(kind=f"… {last.id}: {len(group)} × {first.kind or '(removed)'}"))
    edges_left = [edge for edge in found.edges if edge.parent not in gone and edge.child not in gone]
    return found._replace(nodes=nodes, edges=edges_left)


def _tree(found: StoredGraph) -> list[str]:
    """Parents above children; a task with several parents is drawn in full below the first."""
    from scheduler.model.graph import tree

    nodes = {node.id: node for node in found.nodes}
    whens = {(edge.parent, edge.child): edge.when for edge in found.edges}
    lines = []
    for line in tree(nodes, whens):
        when = "success" if line.parent is None else whens[line.parent, line.id]
        condition = "" if when == "success" else f" on {when}"
        lines.append(f"{line.lead}{_label(nodes[line.id])}{condition}{' (see above)' if line.again else ''}")
    return lines


def _label(node: GraphNode) -> str:
    return f"{node.id} {node.kind or '(removed)'} [{node.state}]"


def _dot(found: StoredGraph) -> list[str]:
    lines = ["digraph tasks {", "  rankdir=LR;", "  node [shape=box, style=filled, fillcolor=white];"]
    for node in sorted(found.nodes):
        colour = _SHAPES.get(node.state)
        fill = f', fillcolor="{colour}"' if colour else ""
        text = f"{node.id} {node.kind or '(removed)'}".replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  t{node.id} [label="{text}\\n{node.state}"{fill}];')
    for edge in sorted(found.edges):
        label = "" if edge.when == "success" else f' [label="{edge.when}"]'
        lines.append(f"  t{edge.parent} -> t{edge.child}{label};")
    return [*lines, "}"]


def _mermaid(found: StoredGraph) -> list[str]:
    lines = ["flowchart LR"]
    for node in sorted(found.nodes):
        text = f"{node.id} {node.kind or '(removed)'}".replace('"', "#quot;")
        lines.append(f'  t{node.id}["{text}<br/>{node.state}"]')
    for edge in sorted(found.edges):
        arrow = "-->" if edge.when == "success" else f"-->|{edge.when}|"
        lines.append(f"  t{edge.parent} {arrow} t{edge.child}")
    return lines


@click.command(name="compare")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@click.argument("other", metavar="[OTHER]", type=TASK_ID, required=False)
@common
@prints(_COMPARE_FIELDS)
def compare_command(session: Session, /, task_id: int, other: int | None) -> int:
    """A task and its graph beside an earlier run: times, ends, payload, log.

    OTHER defaults to the last good run of the schedule that made the task. Without a schedule, it is the last good
    task of the same kind whose correlation and key differ only in numbers. The status is 3 if there is none.
    """
    from scheduler.client.analysis import comparison_view
    from scheduler.operations.analysis import beside

    with session.desk.read() as tx:
        found = beside(tx, task_id, other)
    if found is None:
        note(f"there is no earlier good run to compare task {task_id} with: name a task")
        return exits.UNKNOWN
    view: dict[str, Any] = comparison_view(found.found) | {
        "payload": [change._asdict() for change in found.payload],
        "log": found.log.lines,
    }
    if print_object(session, view):
        return exits.DONE
    say(f"task {view['task']} beside task {view['other']}, which is the left one")
    print_table([_row(role) for role in view["roles"]], ("kind", "tasks", "run_time", "attempts", "states"))
    for change in view["payload"]:
        before = "-" if change["added"] else cell(change["before"])
        say(f"payload {change['path'] or '(whole)'}: {before} > {'-' if change['removed'] else cell(change['after'])}")
    for line in view["log"]:
        say(cell(line))
    if found.log.truncated:
        note("only the last 2,000 lines of the logs are compared")
    return exits.DONE


def _row(role: dict[str, Any]) -> dict[str, Any]:
    def pair(name: str, shown: Any = cell) -> str:
        one, other = shown(role[f"other_{name}"]), shown(role[name])
        return str(one) if one == other else f"{one} > {other}"

    return {
        "kind": role["kind"] or "(removed)",
        "tasks": pair("tasks", len),
        "run_time": pair("run_time"),
        "attempts": pair("attempts"),
        "states": pair("states", lambda states: ", ".join(f"{n} {s}" for s, n in states.items()) or "-"),
    }
