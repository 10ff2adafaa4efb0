"""Random graphs with random ends, against a model of a few lines that looks at one task at a time.

Two claims: with time standing between the tasks, every final state is exactly what the model's walk through the same
moments says; and with everything due at once, every task's state is one that its parents' final states allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from scheduler.model.state import Otherwise, When
from scheduler.testing import drain
from support.bench import Bench, Soft, Step

ENDS = ("success", "dead", "failed", "cancelled")


class Edge(NamedTuple):
    parent: int
    when: str
    otherwise: str


class Node(NamedTuple):
    """``end``: how it ends if it may run; ``late``: stored at its own moment, not with the others at the start."""

    end: str
    late: bool
    edges: tuple[Edge, ...]


@some.composite
def graphs(draw: some.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for place in range(draw(some.integers(2, 9))):
        parents = draw(some.sets(some.integers(0, place - 1), max_size=3)) if place else set()
        edges = tuple(
            Edge(p, draw(some.sampled_from(list(When))), draw(some.sampled_from(list(Otherwise))))
            for p in sorted(parents)
        )
        # A task that is stored late cannot be the parent of one that is stored before it.
        late = any(nodes[e.parent].late for e in edges) or draw(some.booleans())
        nodes.append(Node(draw(some.sampled_from(ENDS)), late, edges))
    return nodes


# The model. A state is None while a task lives.
State = str | None
BAD = {"failed", "dead", "cancelled"}
WANTED = {"success": {"success"}, "failure": BAD, "finished": {"success", "skipped"} | BAD}


def verdict(edge: Edge, parent: State) -> str:
    """What the parent's state means for the child: satisfied, open, fail or skip."""
    if parent is None:
        return "open"
    if parent in WANTED[edge.when] or edge.otherwise == "run":
        return "satisfied"
    if edge.otherwise == "wait":
        return "open"
    return "skip" if parent == "skipped" else edge.otherwise


def verdicts(node: Node, states: Sequence[State]) -> set[str]:
    return {verdict(edge, states[edge.parent]) for edge in node.edges}


def judged(node: Node, states: Sequence[State]) -> str:
    """What a task's edges together say: ready, open, failed or skipped."""
    found = verdicts(node, states)
    for word, means in (("fail", "failed"), ("skip", "skipped"), ("open", "open")):
        if word in found:
            return means
    return "ready"


def broken_among(nodes: Sequence[Node], stored: Sequence[int], states: Sequence[State]) -> dict[int, str]:
    """The living tasks that an edge ends now."""
    words = {n: judged(nodes[n], states) for n in stored if states[n] is None}
    return {n: word for n, word in words.items() if word in ("failed", "skipped")}


def walk(nodes: Sequence[Node]) -> list[State]:
    """Task n is due (and, if late, stored) at moment n; what is broken then ends, level by level."""
    states: list[State] = [None] * len(nodes)
    for moment, node in enumerate(nodes):
        if states[moment] is None:
            outcome = judged(node, states)
            states[moment] = {"ready": node.end, "open": None}.get(outcome, outcome)
        stored = [n for n, other in enumerate(nodes) if not other.late or n <= moment]
        while broken := broken_among(nodes, stored, states):
            for n, outcome in broken.items():
                states[n] = outcome
    return states


def allowed(node: Node, states: Sequence[State], together: bool) -> set[State]:
    """Where a task may be, by its parents' final states. Of two broken edges either may have come first, unless
    all were looked at ``together``.
    """
    outcome = judged(node, states)
    if outcome not in ("failed", "skipped"):
        return {{"ready": node.end, "open": None}[outcome]}
    if together:
        return {outcome}
    return {{"fail": "failed", "skip": "skipped"}[v] for v in verdicts(node, states) & {"fail", "skip"}}


# The scheduler, under the same graph.


class Stage:
    """One example: its tasks' ids, and what their handlers do."""

    def __init__(self, bench: Bench, nodes: Sequence[Node]) -> None:
        self.bench = bench
        self.nodes = nodes
        self.ids: dict[int, int] = {}
        bench.script.failing = {str(n) for n, node in enumerate(nodes) if node.end in ("dead", "failed")}
        bench.script.bodies = {str(n): self.cancel for n, node in enumerate(nodes) if node.end == "cancelled"}

    def cancel(self, ctx: Any) -> None:
        """The handler of a task that is to end cancelled."""
        self.bench.jobs.cancel_task(ctx.id)

    def store(self, places: Sequence[int], apart: bool) -> None:
        """In one batch; with ``apart`` each is due at its own moment."""
        with self.bench.jobs.batch() as batch:
            builders: dict[int, Any] = {}
            for n in places:
                node = self.nodes[n]
                task = builders[n] = batch.task((Soft if node.end == "failed" else Step)(str(n)))
                for edge in node.edges:
                    parent = builders.get(edge.parent) or self.ids[edge.parent]
                    task.depend_on(parent, when=edge.when, otherwise=edge.otherwise)
                if apart and not node.late:
                    task.after(n)
        self.ids |= dict(zip(places, map(int, batch.ids), strict=True))

    def states(self) -> list[State]:
        found = [self.bench.jobs.get_task(self.ids[n]) for n in range(len(self.nodes))]
        assert {t.state.value for t in found if not t.state.terminal} <= {"waiting"}
        return [t.state.value if t.state.terminal else None for t in found]

    def places(self, late: bool) -> list[int]:
        return [n for n, node in enumerate(self.nodes) if node.late == late]


def exactly(bench: Bench, nodes: Sequence[Node]) -> None:
    stage = Stage(bench, nodes)
    stage.store(stage.places(late=False), apart=True)
    for moment, node in enumerate(nodes):
        if node.late:
            stage.store([moment], apart=True)
        drain(bench.jobs)
        bench.clock.advance(1)
    assert stage.states() == walk(nodes)


def at_once(bench: Bench, nodes: Sequence[Node]) -> None:
    stage = Stage(bench, nodes)
    stage.store(stage.places(late=False), apart=False)
    drain(bench.jobs)
    stage.store(stage.places(late=True), apart=False)
    drain(bench.jobs)
    states = stage.states()
    for n, node in enumerate(nodes):
        ended_before = node.late and not any(nodes[edge.parent].late for edge in node.edges)
        assert states[n] in allowed(node, states, together=ended_before), n

    # All that failed is mended and retried: what succeeded is not touched, all else is where it may be.
    done = {n: bench.jobs.get_task(stage.ids[n]) for n, state in enumerate(states) if state == "success"}
    bench.script.failing, bench.script.bodies = set(), {}
    for n in range(len(nodes)):
        if bench.jobs.get_attempts(stage.ids[n]) and n not in done:
            bench.jobs.retry_task(stage.ids[n])
    drain(bench.jobs)
    states = stage.states()
    for n, node in enumerate(nodes):
        if n in done:
            assert bench.jobs.get_task(stage.ids[n]) == done[n], n
        else:
            assert states[n] in allowed(node._replace(end="success"), states, together=False), n


CHECKS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)


EVERY_TIME = {"sqlite": 30, "postgresql": 8}
SOAK = {"sqlite": 300, "postgresql": 60}


@pytest.mark.case(31, 33, 35, 36)
@pytest.mark.parametrize("claim", [exactly, at_once])
@pytest.mark.parametrize("most", [EVERY_TIME, pytest.param(SOAK, marks=pytest.mark.soak)], ids=["few", "many"])
def test_any_graph(bench: Bench, claim: Callable[[Bench, Sequence[Node]], None], most: dict[str, int]) -> None:
    few = settings(max_examples=most[bench.database.dialect], suppress_health_check=CHECKS)

    @few
    @given(graphs())
    def check(nodes: list[Node]) -> None:
        claim(bench, nodes)

    check()


def test_the_model_itself() -> None:
    """A few walks worked out by hand."""
    fails = Node("dead", False, ())
    child = Node("success", False, (Edge(0, "success", "fail"),))
    assert walk([fails, child]) == ["dead", "failed"]
    assert walk([fails, child._replace(late=True)]) == ["dead", "failed"]
    assert walk([fails, Node("success", False, (Edge(0, "success", "wait"),))]) == ["dead", None]
    assert walk([fails, Node("cancelled", False, (Edge(0, "failure", "skip"),))]) == ["dead", "cancelled"]
    skips = Node("success", False, (Edge(0, "success", "skip"),))
    under = Node("success", False, (Edge(1, "success", "fail"),))
    assert walk([fails, skips, under]) == ["dead", "skipped", "skipped"]
    both = Node("success", False, (Edge(1, "success", "skip"), Edge(2, "success", "fail")))
    assert walk([fails, skips, child, both]) == ["dead", "skipped", "failed", "failed"]
