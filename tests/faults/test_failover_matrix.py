"""Every way to replace a primary by its standby, with each promise that a commit can wait for (PostgreSQL).

``make faults-ha`` runs it. Each cell tells what the failover cost.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from faults.failover_trial import LEASE, PATIENCE, Caller, Trial
from faults.harness import Fleet, Mother, until
from faults.test_failover import echo, stored
from scheduler import Scheduler, UnknownTaskError
from scheduler.store.db.identity import STEP
from support import postgres_server
from support.own_server import JOBS
from support.patroni_pair import PatroniPair
from support.replication import Pair
from support.session import files_directory

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.alone]
LATE = 5.0  # seconds without a primary
CUT = 3.0  # seconds in which the primary goes on alone
PAUSED, AWAY = 0.5, 6.0  # seconds, of which AWAY are longer than a lease
BACK = 3.0  # seconds in which the old primary takes writes beside the new one
RECONNECTIONS = 6  # of everything, meanwhile
WENT_BACK = "UPDATE schedd_store SET server = 'restored' WHERE epoch = (SELECT max(epoch) FROM schedd_store)"
SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'schedd%'"


def at_once(trial: Trial) -> None:
    trial.pair.fail_over()


def late(trial: Trial) -> None:
    trial.pair.kill()
    time.sleep(LATE)
    trial.pair.promote()


def cut(trial: Trial) -> None:
    trial.pair.cut()
    time.sleep(CUT)
    trial.pair.fail_over()


def switchover(trial: Trial) -> None:
    trial.pair.primary.stop()
    trial.pair.promote()


def demotion(trial: Trial) -> None:
    trial.pair.demote()
    trial.pair.caught_up()
    trial.pair.promote()


def old_primary_back(trial: Trial) -> None:
    """It comes back as it was, the first host of the URL, and everything has to connect anew."""
    trial.pair.fail_over()
    before = trial.called()
    until(lambda: trial.called() > before, "calls are acknowledged by the new primary", PATIENCE)
    trial.pair.primary.start()
    trial.newcomer = Caller(trial.url, "newcomer", random.Random(1))
    trial.newcomer.start()
    for _ in range(RECONNECTIONS):
        trial.pair.standby.sql(SESSIONS)
        time.sleep(BACK / RECONNECTIONS)
    trial.pair.kill()
    trial.newcomer.stop()


FAULTS: dict[str, Callable[[Trial], None]] = {
    "killed, promoted at once": at_once,
    "killed, promoted 5 s later": late,
    "replication cut for 3 s, killed": cut,
    "switchover": switchover,
    "demoted, sessions kept": demotion,
    "old primary back for 3 s": old_primary_back,
}


def patroni_switchover(trial: Trial) -> None:
    trial.pair.switch_over()


def patroni_killed(trial: Trial) -> None:
    trial.pair.fail_over()


PATRONI_FAULTS: dict[str, Callable[[Trial], None]] = {
    "switchover": patroni_switchover,
    "leader killed with its Patroni": patroni_killed,
}


@pytest.fixture
def trial(request: pytest.FixtureRequest, mother: Mother) -> Iterator[Trial]:
    with Pair() as pair, tried(pair, request.param, mother) as made:
        yield made


@pytest.fixture
def patroni_trial(mother: Mother) -> Iterator[Trial]:
    with PatroniPair() as pair, tried(pair, "on", mother) as made:
        yield made


@contextmanager
def tried(pair: Pair | PatroniPair, commit: str, mother: Mother) -> Iterator[Trial]:
    directory = Path(tempfile.mkdtemp(prefix="h", dir=files_directory()))
    fleet = Fleet(pair.url(), directory, mother)
    made = Trial(pair, fleet, commit)
    try:
        yield made
    finally:
        made.close()
        fleet.close()
    for process in fleet.processes:
        print(process.tail())  # shown when the test failed
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.case(67, 68, pure=True)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("trial", ["async", "on", "remote_apply"], indirect=True)
def test_nothing_is_taken_for_another_task_through(trial: Trial, fault: str, tell: Callable[[str], None]) -> None:
    tell(trial.run(FAULTS[fault]).text())


@pytest.mark.case(67, 68, pure=True)
@pytest.mark.parametrize("fault", PATRONI_FAULTS)
def test_nothing_is_taken_for_another_task_when_patroni_replaces_the_leader(
    patroni_trial: Trial, fault: str, tell: Callable[[str], None]
) -> None:
    tell(patroni_trial.run(PATRONI_FAULTS[fault]).text())


@pytest.mark.case(67, pure=True)
@pytest.mark.parametrize("trial", ["on"], indirect=True)
def test_while_its_only_synchronous_standby_is_away_nothing_is_acknowledged(
    trial: Trial, tell: Callable[[str], None]
) -> None:
    def standby_away(trial: Trial) -> None:
        trial.pair.standby.stop()
        time.sleep(PAUSED)  # what was committed when the standby went may be answered late
        before = trial.called()
        time.sleep(AWAY)
        assert trial.called() == before
        trial.pair.standby.start()

    tell(trial.run(standby_away, stays=True).text())


@pytest.mark.case(67, 68, pure=True)
def test_an_old_primary_joins_the_new_one_by_pg_rewind_and_takes_over_again() -> None:
    with Pair() as pair, closing(Scheduler(pair.url(), lease=LEASE)) as jobs:
        jobs.register(echo)
        jobs.start()
        pair.caught_up()
        pair.cut()
        lost = stored(jobs, "lost")
        pair.fail_over()
        kept = stored(jobs, "kept")
        assert kept > STEP
        pair.rejoin()
        pair.caught_up()
        pair.fail_over()
        last = stored(jobs, "last")
        assert last > 2 * STEP
        assert [jobs.result(number, timeout=PATIENCE) for number in (kept, last)] == ["kept", "last"]
        with pytest.raises(UnknownTaskError, match="is gone"):
            jobs.result(lost, timeout=0)


@pytest.mark.case(67, pure=True)
def test_a_dump_restored_on_the_same_server_begins_an_epoch_once_its_row_says_so() -> None:
    """Neither system identifier nor timeline says that the store went back: see the guide."""
    with Pair() as pair:
        with closing(Scheduler(pair.url())) as jobs:
            jobs.register(echo)
            first = jobs.task(echo, "dumped").schedule()
            binaries, dump = pair.primary._binaries, pair.primary.data / "dump"
            at = ("-h", pair.primary.data, "-p", pair.primary.port, "-U", "postgres")
            postgres_server._run(binaries / "pg_dump", *at, "-Fc", "-f", dump, "-d", JOBS)
            jobs.task(echo, "later").schedule()
        pair.primary.sql("CREATE DATABASE restored")
        postgres_server._run(binaries / "pg_restore", *at, "-d", "restored", dump)
        pair.primary.sql(WENT_BACK, "restored")
        with closing(Scheduler(pair.url(database="restored"))) as jobs:
            jobs.register(echo)
            assert jobs.get_task(int(first)).id == first
            assert jobs.task(echo, "new").schedule() > STEP
