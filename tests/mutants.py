"""Takes away, one at a time, what the guarantees stand on, and shows which test notices: ``make mutants``.

Each mutant is made in a copy of the tree; only the tests named beside it run there, on SQLite, but for locks that only
PostgreSQL needs. Exits with 1 if one of them survives, if a test fails without any mutant, or if the text that a mutant
replaces is no longer there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = (
    "schedd",
    "scheduler",
    "tasks",
    "migrations",
    "tests",
    "examples",
    "pyproject.toml",
    "README.md",
    "config.example.toml",
)
LIMIT = 300  # seconds for one run of pytest


class Change(NamedTuple):
    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    database: str = "sqlite"


def _index_off(name: str, columns: str) -> tuple[Change, ...]:
    """The unique index is still there, but not unique: in the schema and in the migration."""
    files = ("scheduler/store/schema.py", "migrations/versions/0001_initial.py")
    pattern = f'_partial("{name}", {columns}, where="{{where}}", unique=True)'
    where = "held_key IS NOT NULL" if "held_key" in columns else "schedule IS NOT NULL"
    old = pattern.format(where=where)
    return tuple(Change(file, old, old.replace(", unique=True", "")) for file in files)


MUTANTS = (
    Mutant(
        "the fence: worker and claim in the finish",
        (
            Change(
                "scheduler/store/db/dialect.py",
                "CASE WHEN {table}.claim = j.claim THEN {table}.worker = :worker AND {table}.state + 0 {states} "
                "ELSE false END",
                "(:worker IS NOT NULL AND {table}.state + 0 {states})",
            ),
        ),
        ("tests/engine/test_claim_lease.py", "tests/store/tasks/test_fence.py"),
    ),
    Mutant(
        "the fence: the claim alone",
        (Change("scheduler/store/db/dialect.py", "CASE WHEN {table}.claim = j.claim THEN", "CASE WHEN true THEN"),),
        ("tests/engine/test_claim_lease.py", "tests/store/tasks/test_fence.py"),
    ),
    Mutant(
        "the lease test in reap",
        (Change("scheduler/store/reaper.py", "(t.lease_until < :before OR", "(:before > 0 OR"),),
        ("tests/engine/test_claim_lease.py",),
    ),
    Mutant(
        "the lease test in renew",
        (
            Change(
                "scheduler/store/workers.py",
                'heartbeat_at = :now{also} "\n        f"WHERE id = :worker AND state < {STOPPED} AND',
                'heartbeat_at = :now{also} "\n        f"WHERE id = :worker AND',
            ),
        ),
        ("tests/engine/test_claim_lease.py", "tests/store/tasks/test_fence.py"),
    ),
    Mutant(
        "handlers learn it when the lease runs out",
        (
            Change(
                "scheduler/engine/maintenance/lease.py",
                "min(self._every, left) if left > 0 else self._every",
                "self._every",
            ),
        ),
        ("tests/engine/maintenance/test_lease.py",),
    ),
    Mutant(
        "time to renew after an outage",
        (Change("scheduler/engine/engine.py", "self.lease.postpone_reaping()", "pass"),),
        ("tests/engine/maintenance/test_lease.py",),
    ),
    Mutant(
        "a renewal gives back only what it has kept",
        (
            Change(
                "scheduler/engine/maintenance/lease.py",
                "[attempt for attempt in list(self.engine_state.held.values()) if not attempt.lost]",
                "list(self.engine_state.held.values())",
            ),
        ),
        ("tests/engine/maintenance/test_lease.py",),
    ),
    Mutant(
        "a claim that no worker knows of is not forgotten",
        (Change("scheduler/engine/dispatch/lost_commits.py", "return bool(deferred)", "return False"),),
        ("tests/engine/dispatch/test_commit_loss.py",),
        "postgresql",
    ),
    Mutant(
        "ends outlive an urgent cycle that fails",
        (Change("scheduler/engine/dispatch/completion.py", "pairs + self.deferred", "pairs"),),
        ("tests/engine/test_failed_cycles.py",),
    ),
    Mutant(
        "no end is slept over",
        (
            Change(
                "scheduler/engine/state.py",
                "if self.outcomes or self.requests or self._rung:",
                "if self.requests or self._rung:",
            ),
        ),
        ("tests/engine/test_failed_cycles.py",),
    ),
    Mutant(
        "what a dead child had not begun goes back",
        (
            Change(
                "scheduler/engine/processes/monitor.py",
                "self._queue.put_back([job for job in child.jobs.values() if not job.started])",
                "pass",
            ),
        ),
        ("tests/engine/processes/test_pool.py",),
    ),
    Mutant(
        "a thread leaves ctx.cpu when the function has ended",
        (Change("scheduler/engine/execution/offload.py", "        wait([future])\n", ""),),
        ("tests/engine/execution/test_cpu_functions.py",),
    ),
    Mutant(
        "a coroutine leaves ctx.cpu when the function has ended",
        (
            Change(
                "scheduler/engine/execution/offload.py",
                "        await wait_uncancelled(ended, deferred_cancel)",
                "        pass",
            ),
        ),
        ("tests/engine/execution/test_cpu_functions.py",),
    ),
    Mutant(
        "what has ended in a child is reported at a hard stop",
        (
            Change(
                "scheduler/engine/processes/monitor.py",
                "        self._report_deferred(child)\n\n    def _report_deferred(",
                "        pass\n\n    def _report_deferred(",
            ),
        ),
        ("tests/engine/processes/test_pool.py",),
    ),
    Mutant(
        "the release condition: all edges met",
        (
            Change(
                "scheduler/store/graph/release.py",
                "CASE WHEN schedd_tasks.unmet - d.n <= 0 THEN",
                "CASE WHEN schedd_tasks.unmet >= 0 THEN",
            ),
        ),
        ("tests/store/graph/test_revival.py",),
    ),
    Mutant(
        "the same for what a cycle claims as it releases it",
        (Change("scheduler/store/tasks/ready_children.py", "rows = [row for row in rows if _LEFT(row) <= 0]", "pass"),),
        ("tests/store/graph/test_dependencies.py",),
    ),
    Mutant(
        "what is due before comes first",
        (Change("scheduler/store/tasks/ready_children.py", "if lane in known:", "if False:"),),
        ("tests/engine/dispatch/test_ready_children.py",),
    ),
    Mutant(
        "the release condition: which ends meet an edge",
        (Change("scheduler/store/graph/release.py", "(ok & :bit) <> 0", "(ok & :bit) >= 0"),),
        ("tests/store/graph/test_truth_table.py",),
    ),
    Mutant(
        "finish and release in one transaction",
        (
            Change(
                "scheduler/store/tasks/complete.py",
                "    ready += release(",
                '    tx.connection.exec_driver_sql("COMMIT")\n'
                '    tx.connection.exec_driver_sql("BEGIN")\n'
                "    ready += release(",
            ),
        ),
        ("tests/engine/dispatch/test_one_commit.py",),
    ),
    Mutant(
        "one task per (schedule, slot)",
        (
            *_index_off("ux_schedd_tasks_slot", '"schedule", "slot", "key"'),
            Change(
                "scheduler/store/schedules.py",
                "have_run(tx, [(one.row.name, fire.slot) for one in due for fire in one.fires])",
                "set()",
            ),
        ),
        ("tests/engine/maintenance/test_catch_up.py", "tests/engine/maintenance/test_schedules.py"),
    ),
    Mutant(
        "a key is held once",
        (
            *_index_off("ux_schedd_tasks_held_key", '"kind", "held_key"'),
            Change(
                "scheduler/store/tasks/enqueue.py",
                "ON CONFLICT (kind, held_key) WHERE held_key IS NOT NULL DO NOTHING RETURNING id",
                "RETURNING id",
            ),
            Change(  # which SQLite's one writer at a time would do by itself
                "scheduler/store/tasks/keys.py",
                "SELECT t.id, t.state FROM schedd_tasks t WHERE t.kind = :kind",
                "SELECT t.id, t.state FROM schedd_tasks t WHERE t.id < 0 AND t.kind = :kind",
            ),
        ),
        ("tests/store/tasks/test_keys.py",),
    ),
    Mutant(
        "a replaced task runs once more when its attempt has ended",
        (
            Change(
                "scheduler/store/tasks/complete.py",
                "CASE WHEN {T}.rerun = 1 THEN {SCHEDULED}",
                "CASE WHEN false THEN 0",
            ),
        ),
        ("tests/store/tasks/test_replace.py",),
    ),
    Mutant(
        "nothing of the replaced set is left",
        (
            Change(
                "scheduler/store/tasks/replace.py",
                '"DELETE FROM schedd_edges WHERE child = :id",',
                '"DELETE FROM schedd_edges WHERE child = :id AND 1 = 0",',
            ),
        ),
        ("tests/store/tasks/test_replace.py",),
    ),
    Mutant(
        "what is asked again is answered, not done again",
        (Change("scheduler/engine/dispatch/requests.py", "r._replace(again=True) for r", "r for r"),),
        ("tests/engine/dispatch/test_requests.py",),
    ),
    Mutant(
        "an end is known by the record of its attempt",
        (
            Change(
                "scheduler/engine/dispatch/completion.py",
                "        lost = [(o.task_id, o.claim) for o in finished.lost]",
                "        lost: list[tuple[int, int]] = []",
            ),
        ),
        ("tests/engine/dispatch/test_requests.py",),
    ),
    Mutant(
        "a claim that is committed late is looked for",
        (
            Change(
                "scheduler/engine/maintenance/registration.py", "            self.dispatch.lost_commits.recheck()\n", ""
            ),
        ),
        ("tests/engine/dispatch/test_requests.py",),
    ),
    Mutant(
        "what stalled is kept from running here before it is taken back",
        (
            Change("scheduler/engine/maintenance/stalls.py", "    engine_state.losing |= keys\n", ""),
            Change(
                "scheduler/engine/maintenance/stalls.py",
                "    engine_state.losing -= keys - gone\n",
                "    engine_state.losing |= gone\n",
            ),
        ),
        ("tests/engine/maintenance/test_stalls.py",),
    ),
    Mutant(
        "the cap lock",
        (
            Change(
                "scheduler/store/tasks/limits.py", 'f"ORDER BY t.name {tx.dialect.skip_locked}"', '"ORDER BY t.name"'
            ),
        ),
        ("tests/engine/dispatch/test_max_concurrency.py",),
        "postgresql",
    ),
    Mutant(
        "the cap counts what is held",
        (Change("scheduler/store/tasks/limits.py", "max(0, self.limit.cap - self.held)", "self.limit.cap"),),
        ("tests/engine/dispatch/test_max_concurrency.py", "tests/engine/dispatch/test_queue_limits.py"),
    ),
    Mutant(
        "the lock of a queue's limits",
        (
            Change(
                "scheduler/store/tasks/limits.py",
                'f"ORDER BY t.name, t.scope {tx.dialect.skip_locked}"',
                '"ORDER BY t.name, t.scope"',
            ),
        ),
        ("tests/engine/dispatch/test_queue_limits.py",),
        "postgresql",
    ),
    Mutant(
        "a queue's cap counts all kinds in it",
        (Change("scheduler/store/tasks/limits.py", "t.queue = j.queue AND t.state", "t.lane = j.queue AND t.state"),),
        ("tests/engine/dispatch/test_queue_limits.py",),
    ),
    Mutant(
        "the rate counts starts until they may be over",
        (Change("scheduler/model/rate.py", "if until > now - self.period))", "if until > now))"),),
        ("tests/engine/dispatch/test_rate_limit.py",),
    ),
    Mutant(
        "a replaced task keeps its key",
        (
            Change(
                "scheduler/store/tasks/complete.py",
                "  held_key = CASE WHEN {T}.rerun <> 1\n      AND ({T}.cancel_requested",
                "  held_key = CASE WHEN {T}.rerun <> 3\n      AND ({T}.cancel_requested",
            ),
        ),
        ("tests/store/tasks/test_replace.py",),
    ),
    Mutant(
        "a cancel from above means what replaced it, too",
        (
            Change(
                "scheduler/store/graph/spawned.py",
                "rerun = CASE WHEN rerun = 1 THEN 2 ELSE rerun END",
                "rerun = rerun",
            ),
        ),
        ("tests/store/tasks/test_replace.py",),
    ),
    Mutant(
        "the key of what ends with its worker",
        (
            Change(
                "scheduler/store/reaper.py",
                "held_key = CASE WHEN j.state >= {FIRST_TERMINAL} THEN NULL ELSE schedd_tasks.held_key END, ",
                "",
            ),
        ),
        ("tests/store/tasks/test_keys.py::test_the_key_of_what_ends_with_its_worker_is_free_again",),
    ),
    Mutant(
        "a dead worker stays while it holds something",
        (
            Change(
                "scheduler/store/admin/retention.py", "WHERE t.worker = schedd_workers.id AND", "WHERE t.worker < 0 AND"
            ),
        ),
        ("tests/store/admin/test_retention.py",),
    ),
    Mutant(
        "a fixed delay goes on though its run is gone",
        (Change("scheduler/store/schedules.py", "AND (r.id IS NULL OR r.state >=", "AND (r.state >="),),
        ("tests/engine/maintenance/test_schedule_failures.py",),
    ),
    Mutant(
        "a key's holder that a batch depends on is held",
        (Change("scheduler/store/tasks/enqueue.py", "if not lock and len(self.specs) > 1:", "if False:"),),
        ("tests/store/tasks/test_lock_waits.py",),
        "postgresql",
    ),
    Mutant(
        "a failover that loses commits begins an epoch",
        (
            Change(
                "scheduler/store/db/identity.py",
                "return any(mine is not None and its is not None and mine != its for mine, its in pairs)",
                "return not pairs",
            ),
        ),
        ("tests/faults/test_failover.py::test_what_a_failover_loses_is_never_taken_for_what_comes_after_it",),
    ),
    Mutant(
        "a commit whose wait for the standby is cancelled is not done",
        (Change("scheduler/store/db/synchronous.py", "if diagnostic.source_function == _WAITS:", "if not _WAITS:"),),
        ("tests/faults/test_failover.py::test_a_commit_whose_wait_for_the_standby_is_cancelled_is_not_acknowledged",),
    ),
    Mutant(
        "another file at the path is noticed",
        (Change("scheduler/store/db/identity.py", "if found == file.id:", "if found != ():"),),
        ("tests/store/db/test_replaced_file.py",),
    ),
    Mutant(
        "a handler past its timeout is reported",
        (
            Change(
                "scheduler/engine/maintenance/hung_handlers.py",
                "mono >= attempt.deadline + HUNG_AFTER_S",
                "mono < 0",
            ),
        ),
        ("tests/engine/maintenance/test_hung_handlers.py",),
    ),
    Mutant(
        "a call that is not answered in time is cut",
        (Change("scheduler/store/db/deadline.py", "                    self._cut()", "                    pass"),),
        ("tests/store/db/test_time_limits.py",),
        "postgresql",
    ),
    Mutant(
        "a connection that was cut is not handed out",
        (
            Change(
                "scheduler/store/db/pg_connections.py",
                "raw.distrusted = True  # the pool hands out none of them again",
                "raw.distrusted = False",
            ),
        ),
        ("tests/store/db/test_autocommit.py",),
        "postgresql",
    ),
    Mutant(
        "an engine's statements wait for a lock for a while only",
        (Change("scheduler/store/db/database.py", "max(MIN_LOCK_WAIT, LOCK_WAIT * idle)", "1e6"),),
        ("tests/engine/test_locked_table.py",),
        "postgresql",
    ),
    Mutant(
        "nothing is claimed under a lease too short for the way",
        (
            Change(
                "scheduler/engine/maintenance/lease.py",
                "float(math.ceil(MIN_TRIPS_PER_LEASE * trip)) if _too_far(trip, lease) else None",
                "None",
            ),
        ),
        ("tests/engine/maintenance/test_far_server.py",),
        "postgresql",
    ),
    Mutant(
        "a database that takes no writes is named",
        (
            Change(
                "scheduler/store/db/writable.py",
                "if not os.access(one, os.W_OK):",
                "if not one:",
            ),
            Change("scheduler/store/db/writable.py", "    if row.read_only:", "    if not row:"),
            Change("scheduler/store/db/writable.py", "    if row.standby:", "    if not row:"),
        ),
        ("tests/store/db/test_writable.py",),
        "postgresql",
    ),
    Mutant(
        "an action for another server is refused",
        (Change("tasks/actions/tokens.py", "elif server not in named:", "elif not server:"),),
        ("tests/tasks/test_actions.py",),
    ),
    Mutant(
        "a time limit counts from the first question",
        (
            Change(
                "scheduler/store/db/deadline.py",
                "            _here.deadline = self\n",
                "            _here.deadline = self\n            self.start()\n",
            ),
        ),
        ("tests/store/db/test_time_limits.py",),
    ),
    Mutant(
        "what a child writes breaks its own stream alone",
        (
            Change(
                "scheduler/engine/child/protocol.py",
                "except (msgspec.MsgspecError, ValueError, RecursionError):",
                "except msgspec.DecodeError:",
            ),
        ),
        ("tests/engine/child/test_protocol.py",),
    ),
    Mutant(
        "an attempt's end waits for its calls in threads",
        (Change("scheduler/engine/attempt/loop_threads.py", "            calls.add(running)\n", ""),),
        ("tests/engine/execution/test_async_attempts.py",),
    ),
    Mutant(
        "reads of schedd have threads of their own",
        (
            Change(
                "scheduler/engine/attempt/loop_threads.py",
                'return ThreadPoolExecutor(MAX_CONCURRENT_READS, "schedd-reads")',
                "return self.handlers",
            ),
        ),
        ("tests/engine/execution/test_blocked_threads.py",),
    ),
    Mutant(
        "a verdict leaves the child before its hook",
        (
            Change(
                "scheduler/engine/child/runtime.py",
                'self.link.put("decided", attempt.number, outcome)',
                "pass",
            ),
        ),
        ("tests/faults/test_garbled.py",),
    ),
    Mutant(
        "a key that has completed is not free",
        (
            Change(
                "scheduler/store/tasks/keys.py",
                "if done is not None or holder is not None:",
                "if holder is not None:",
            ),
        ),
        ("tests/store/tasks/test_keys_of_retried.py",),
    ),
    Mutant(
        "a handler that began has used its attempt",
        (Change("scheduler/store/reaper.py", "begun(path) if path else set()", "set()"),),
        ("tests/faults/test_kill.py",),
    ),
    Mutant(
        "another kind's schedule is not replaced",
        (Change("scheduler/store/schedules.py", "    elif row.kind != kind:\n", "    elif not kind:\n"),),
        ("tests/engine/maintenance/test_schedules.py",),
    ),
    Mutant(
        "an action has one signature",
        (
            Change(
                "tasks/actions/tokens.py",
                "if _low(signature) != signature:\n            return False",
                "if not signature:\n            return False",
            ),
        ),
        ("tests/tasks/test_actions.py",),
    ),
    Mutant(
        "a secret in a URL is masked",
        (
            Change(
                "scheduler/store/db/urls.py",
                "return shown_url(url.render_as_string(hide_password=False))",
                "return url.render_as_string()",
            ),
        ),
        ("tests/cli/test_secrets.py",),
        "postgresql",
    ),
    Mutant(
        "nothing that a task says is obeyed by a terminal",
        (Change("scheduler/cli/echo.py", "click.echo(printable(str(text))", "click.echo(str(text)"),),
        ("tests/cli/test_terminal.py",),
    ),
    Mutant(
        "a database is its owner's alone",
        (
            Change(
                "scheduler/store/db/sqlite_files.py",
                "os.O_RDWR | files.CLOEXEC, 0o600",
                "os.O_RDWR | files.CLOEXEC, 0o644",
            ),
        ),
        ("tests/store/db/test_sqlite_files.py",),
    ),
    Mutant(
        "after a stop the file is the whole database",
        (Change("scheduler/store/db/database.py", "            fold_wal(self.path)\n", "            pass\n"),),
        ("tests/store/db/test_sqlite_files.py",),
    ),
)


def copy_tree(target: Path) -> None:
    """What the tests need; the installed parts where the package has them, since the editable install points home."""
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", ".pytest_cache")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy2(source, target / name)
    for name in ("tasks", "migrations"):
        (target / "scheduler" / name).symlink_to(target / name)


def run(tree: Path, tests: tuple[str, ...], database: str) -> tuple[bool, str]:
    """Whether they pass on this database; and the first that did not."""
    chosen = "not postgresql" if database == "sqlite" else database
    options = ("-x", "-q", "-p", "no:cacheprovider", "--every-database", "-m", "not soak", "-k", chosen)
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no end within {LIMIT} s"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and failed is None):
        raise SystemExit(f"pytest could not run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return done.returncode == 0, failed[1] if failed else ""


def mutate(tree: Path, mutant: Mutant) -> dict[Path, str]:
    """Make the changes; returns what the files were before."""
    before: dict[Path, str] = {}
    for change in mutant.changes:
        path = tree / change.file
        text = path.read_text(encoding="utf-8")
        if text.count(change.old) != 1:
            raise SystemExit(f"{mutant.name}: {change.file} has {text.count(change.old)} times: {change.old}")
        before.setdefault(path, text)
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    return before


def main() -> int:
    """Run the mutants whose names hold one of the words given, or all."""
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in mutant.name for word in sys.argv[1:])]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="schedd-mutants-") as directory:
        tree = Path(directory)
        copy_tree(tree)
        for mutant in MUTANTS:  # before anything runs: every mutant can be made
            for path, text in mutate(tree, mutant).items():
                path.write_text(text, encoding="utf-8")
        for database in sorted({mutant.database for mutant in chosen}):
            tests = {test for mutant in chosen if mutant.database == database for test in mutant.tests}
            passed, failed = run(tree, tuple(sorted(tests)), database)
            if not passed:
                print(f"without any mutant this fails already: {failed}", file=sys.stderr)
                return 1
        print(f"{'without':48}  noticed by")
        for mutant in chosen:
            before = mutate(tree, mutant)
            passed, failed = run(tree, mutant.tests, mutant.database)
            print(f"{mutant.name:48}  {'NO TEST: it survives' if passed else failed}", flush=True)
            survived += passed
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
    print(f"{len(chosen)} mutants, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
