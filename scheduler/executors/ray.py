"""The executor ``ray``: jobs are jobs of a Ray cluster, by its Job API over HTTP. Ray itself is not imported.

A job's handle is its name, which is Ray's ``submission_id``. Ray keeps its jobs in memory: after its head has died it
knows none of them, though what runs may go on.
"""

from __future__ import annotations

import math
import ssl
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import msgspec

from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.executors import ray_parse
from scheduler.executors.ports import (
    Capabilities,
    ExecutorError,
    Finding,
    Job,
    PlacementPhase,
    Refused,
    Seen,
    Submitted,
)
from scheduler.model.secrets import Secret
from scheduler.transports.ports import require

KEPT_S = 86_400.0  # a record of a job that Ray lost sight of
MAX_ANSWER = 64 * 2**20  # bytes of an answer that are read
MAX_LOG = 8 * 2**20  # bytes of a log that are read; of a longer one its end, which Ray keeps with the job
_TIDY_S = 3_600.0  # between two looks for such records
_TIDIED_AT_ONCE = 100  # records removed in one look


class _Answer(NamedTuple):
    status: int
    content: bytes
    after: float | None  # seconds that the server asks to be left alone
    whole: bool = True

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


class RayExecutor:
    """Jobs of a Ray cluster. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``url``: of the dashboard, such as http://head:8265. ``token``: goes with each request as a bearer.
        ``ca_file``: certificates to trust instead of the system's. ``defaults``: ``executor_options`` of tasks that do
        not have them. ``python``: the nodes' interpreter, if it has another path than the daemon's. ``timeout``:
        seconds for an answer. ``grace``: of the executor, which becomes the time between SIGTERM and SIGKILL."""

        url: str
        token: Annotated[str | None, Secret] = None
        ca_file: str | None = None
        defaults: dict[str, Any] = msgspec.field(default_factory=dict)
        python: str | None = None
        timeout: Annotated[Duration, msgspec.Meta(gt=0)] = 20.0
        grace: Annotated[Duration, msgspec.Meta(gt=0)] = 10.0

    def __init__(self, name: str, settings: Settings) -> None:
        require("httpx2", "ray", f"executor {name}, of type ray,")
        if not settings.url.startswith(("http://", "https://")):
            raise ConfigError(f"executors.{name}.url must begin with http:// or https://, not {settings.url!r:.80}")
        if "@" in settings.url:
            raise ConfigError(f"executors.{name}.url must have no user and password: Ray takes a token")
        wrong = ray_parse.wrong_option(settings.defaults)
        if wrong is not None:
            raise ConfigError(f"executors.{name}.defaults: {wrong}")
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._verify: ssl.SSLContext | bool = True
        if settings.ca_file is not None:
            try:
                self._verify = ssl.create_default_context(cafile=settings.ca_file)
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(f"executors.{name}.ca_file: {settings.ca_file} cannot be read: {reason}") from None
        self._client: Any = None
        self._tidied = -math.inf

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`."""
        return [self._submit(job) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        wanted = set(names)
        return {record.name: record.name for record in self._list() if record.name in wanted}

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`. Removes what is left of jobs that Ray lost sight of."""
        records = self._list()
        if time.monotonic() - self._tidied >= _TIDY_S:
            self._tidied = time.monotonic()
            self.forget(list(_long_gone(records, time.time()))[:_TIDIED_AT_ONCE])
        return [record.seen() for record in records]

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`. The time until SIGKILL is what the job was started with."""
        for handle in handles:
            answer = self._ask("POST", f"/api/jobs/{_checked(handle)}/stop")
            if answer.status not in (200, 404):
                raise _unwell(answer)

    def logs(self, handle: str, tail: int) -> str | None:
        """See :class:`scheduler.executors.ports.Executor`."""
        answer = self._ask("GET", f"/api/jobs/{_checked(handle)}/logs", most=MAX_LOG)
        if answer.status == 404:
            return None
        if answer.status == 200 and answer.whole:
            return ray_parse.own_words(str(_decoded(answer, dict[str, str]).get("logs", "")), tail)
        answer = self._ask("GET", f"/api/jobs/{handle}")
        record = _decoded(answer, ray_parse.Record) if answer.status == 200 else ray_parse.Record()
        return ray_parse.own_words(record.logged or "", tail)

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for handle in handles:
            answer = self._ask("DELETE", f"/api/jobs/{_checked(handle)}")
            if answer.status not in (200, 404) and "non-terminal state" not in answer.text:
                raise _unwell(answer)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        answer = self._ask("GET", "/api/version")
        if answer.status != 200:
            raise _unwell(answer)
        version = _decoded(answer, dict[str, Any])
        found = [Finding(True, f"Ray {version.get('ray_version')}, {version.get('session_name')}")]
        records = self._list()
        waiting = sum(record.phase is PlacementPhase.QUEUED for record in records)
        found.append(Finding(True, f"jobs of schedd: {len(records)}, of which wait: {waiting}"))
        if self._settings.token is not None and self._base.startswith("http://"):
            found.append(Finding(True, "the token goes over plain HTTP: it can be read on the way"))
        return found

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # Submissions

    def _submit(self, job: Job) -> Submitted | Refused:
        options = {**self._settings.defaults, **job.options}
        wrong = ray_parse.wrong_option(options)
        if wrong is not None:
            return Refused(job.name, False, f"executor_options: {wrong}")
        wrong = ray_parse.unfit(job.resources)
        if wrong is not None:
            return Refused(job.name, False, wrong)
        if self._settings.python is not None and job.argv[0] == sys.executable:
            job = replace(job, argv=[self._settings.python, *job.argv[1:]])
        fields = ray_parse.request(job, options, self._settings.grace)
        answer = self._ask("POST", "/api/jobs/", msgspec.json.encode(fields))
        if answer.status == 200:
            return Submitted(job.name, job.name)
        if ray_parse.exists(answer.text):
            return self._adopt(job)
        refused = ray_parse.refusal(job.name, answer.status, answer.text, answer.after)
        if refused is None:
            raise _unwell(answer)
        return refused

    def _adopt(self, job: Job) -> Submitted | Refused:
        """Take the job that has the name already, if it is this one."""
        there = next((record for record in self._list() if record.name == job.name), None)
        if there is None:
            return Refused(job.name, True, "Ray had a job of this name a moment ago", ray_parse.RETRY_S)
        if there.store not in (None, job.labels.get("store")):
            return Refused(job.name, False, f"Ray has a job of this name, of the store {there.store}")
        return Submitted(job.name, job.name)

    # Requests

    def _list(self) -> list[ray_parse.Record]:
        """All jobs of schedd, in one question."""
        answer = self._ask("GET", "/api/jobs/")
        if answer.status != 200:
            raise _unwell(answer)
        return [record for record in _decoded(answer, list[ray_parse.Record]) if record.name]

    def _ask(self, method: str, path: str, content: bytes | None = None, most: int = MAX_ANSWER) -> _Answer:
        """An answer, whatever its status; of at most ``most`` bytes. Raises ExecutorError: there is none."""
        import httpx2

        from scheduler.tasks.http.client_log import unlogged

        if self._client is None:
            headers = {"content-type": "application/json"}
            if self._settings.token is not None:
                headers["authorization"] = f"Bearer {self._settings.token}"
            self._client = httpx2.Client(
                timeout=self._settings.timeout, headers=headers, follow_redirects=False, verify=self._verify
            )
        deadline, size, parts = time.monotonic() + self._settings.timeout, 0, []
        try:
            with unlogged(), self._client.stream(method, self._base + path, content=content) as answer:
                after = answer.headers.get("retry-after", "")
                for part in answer.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > most or time.monotonic() > deadline:
                        break
        except httpx2.HTTPError as error:
            text = str(error) or type(error).__name__
            raise ExecutorError(f"Ray at {self._base} cannot be asked: {text}") from None
        return _Answer(
            answer.status_code,
            b"".join(parts),
            float(after) if after.isdecimal() else None,
            size <= most and time.monotonic() <= deadline,
        )


def _checked(handle: str) -> str:
    if not ray_parse.NAME.fullmatch(handle):
        raise ExecutorError(f"{handle!r:.80} is no job of schedd's")
    return handle


def _decoded(answer: _Answer, kind: Any) -> Any:
    """Raises ExecutorError: the answer is cut off, or is not Ray's."""
    if not answer.whole:
        raise ExecutorError(f"Ray's answer is longer than {MAX_ANSWER >> 20} MiB, or took too long")
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ExecutorError(f"the answer is not that of Ray's dashboard: {error}") from None


def _unwell(answer: _Answer) -> ExecutorError:
    if answer.status in (401, 403):
        return ExecutorError(f"Ray answered {answer.status}: it does not take the token; set token_file")
    if answer.status == 404:
        return ExecutorError("there is no Ray dashboard at this url: it answered 404")
    return ExecutorError(f"Ray answered {answer.status}: {ray_parse.last_line(answer.text)}", answer.after)


def _long_gone(records: Iterable[ray_parse.Record], now: float) -> Iterable[str]:
    """Those that the placer does not have forgotten, since it takes them for neither alive nor over."""
    for record in records:
        ended = record.end_time
        if record.phase is PlacementPhase.GONE and ended is not None and now - ended / 1000 > KEPT_S:
            yield record.name
