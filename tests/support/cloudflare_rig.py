"""Queues of one account of Cloudflare's API, the fake's or a real one, and what the conformance suite needs of them."""

from __future__ import annotations

import base64
import json
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from scheduler.transports.cloudflare import API, CloudflareSinkSettings, CloudflareSourceSettings
from support.cloudflare_api import ACCOUNT, TOKEN, CloudflareApi, Held, raw

VISIBILITY = 0.5  # seconds


class Account:
    """Makes queues through the API, as an operator does, and deletes them at the end."""

    def __init__(self, api: str, account: str, token: str) -> None:
        import httpx2

        self.api, self.account, self.token = api, account, token
        self._made: list[str] = []
        self._client = httpx2.Client(
            headers={"authorization": f"Bearer {token}"}, timeout=60, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    def ask(self, method: str, path: str, fields: Any = None) -> Any:
        answer = self._client.request(method, f"{self.api}/accounts/{self.account}/queues{path}", json=fields)
        assert answer.is_success, answer.text
        return answer.json()["result"]

    def make(self, *, max_retries: int = 3, dead_letters: str | None = None, pulled: bool = True) -> tuple[str, str]:
        """A queue with a pull consumer: its id and its name. ``dead_letters``: a queue's name."""
        name = f"schedd-{uuid.uuid4().hex[:20]}"
        key = self.ask("POST", "", {"queue_name": name})["queue_id"]
        self._made.append(key)
        consumer = {"type": "http_pull", "settings": {"max_retries": max_retries}}
        if dead_letters is not None:
            consumer["dead_letter_queue"] = dead_letters
        if pulled:
            self.ask("POST", f"/{key}/consumers", consumer)
        return key, name

    def source_settings(self, queue: str, **more: Any) -> CloudflareSourceSettings:
        return CloudflareSourceSettings(account=self.account, queue=queue, token=self.token, api=self.api, **more)

    def sink_settings(self, queue: str, **more: Any) -> CloudflareSinkSettings:
        return CloudflareSinkSettings(account=self.account, queue=queue, token=self.token, api=self.api, **more)

    def close(self) -> None:
        for key in self._made:
            self.ask("DELETE", f"/{key}")
        self._client.close()


class Fake:
    """The fake of this process, started by the first test that needs it; it ends with the process."""

    api: ClassVar[CloudflareApi | None] = None
    _lock = threading.Lock()

    @classmethod
    def get(cls) -> CloudflareApi:
        with cls._lock:
            if cls.api is None:
                cls.api = CloudflareApi()
                cls.api.start()
            return cls.api


def fake_account() -> Account:
    return Account(Fake.get().url, ACCOUNT, TOKEN)


def real_account() -> Account | None:
    """The account that the environment names, if it does."""
    account, token = (os.environ.get(f"CLOUDFLARE_{name}") for name in ("ACCOUNT_ID", "API_TOKEN"))
    return Account(API, account, token) if account and token else None


class CloudflareRig:
    """See ``support.spool.SpoolRig``."""

    name = type_name = "cloudflare"
    factory = "scheduler.transports.cloudflare:CloudflareSource"
    visibility = VISIBILITY
    extends = False  # a delivery cannot be kept for longer

    def __init__(self, _place: Path) -> None:
        self.fake = Fake.get()
        self.account = fake_account()
        self.dead_queue, dead_name = self.account.make()
        self.queue, _ = self.account.make(max_retries=100, dead_letters=dead_name)

    @property
    def table(self) -> str:
        texts = {"account": ACCOUNT, "queue": self.queue, "dead_letter_queue": self.dead_queue, "token": TOKEN}
        lines = "".join(f'{name} = "{value}"\n' for name, value in {**texts, "api": self.fake.url}.items())
        return f"{lines}visibility = {VISIBILITY}\npoll = 0.2\nbatch = 10\n"

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        """``headers``: a message has none beside its body."""
        try:
            return self.fake.put(self.queue, json.loads(body), "json", message_id)
        except ValueError:
            return self.fake.put(self.queue, body, "bytes", message_id)

    def left(self) -> int:
        return len(self.fake.queues[self.queue].held)

    def dead(self) -> list[bytes]:
        return [_original(one) for one in self.fake.queues[self.dead_queue].held]

    def stop_server(self) -> None:
        self.fake.stop()

    def start_server(self) -> None:
        self.fake.start()

    def close(self) -> None:
        """Its queues are deleted; the server is shared."""
        self.account.close()


def _original(one: Held) -> bytes:
    """What a dead message was; one that was no text is in an object."""
    coded = one.body.get("body_base64") if isinstance(one.body, dict) else None
    return raw(one.body, one.content) if coded is None else base64.b64decode(coded)
