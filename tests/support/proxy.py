"""A small TCP proxy in front of a server's Unix socket, that drops, delays, half-closes and swallows."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends a reset


class _Way:
    """One connection: the client's side and the server's."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.halved = False  # the server was told that it is over, the client was not
        self.passing = asyncio.Event()  # cleared: what comes is held back
        self.passing.set()


class Pooling:
    """What a client of a pooler in transaction mode sees of the server: another process id, no notifications."""

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        if data == b"N" and not self._rest:
            return data  # no encryption: the answer to a question before the protocol proper
        self._rest += data
        passed = b""
        while len(self._rest) >= 5:
            end = 1 + int.from_bytes(self._rest[1:5], "big")
            if len(self._rest) < end:
                break
            message, self._rest = self._rest[:end], self._rest[end:]
            if message[:1] == b"K":  # the process id and secret with which to cancel
                passed += message[:5] + (7_777_777).to_bytes(4, "big") + message[9:]
            elif message[:1] != b"A":  # a notification
                passed += message
        return passed


class Proxy:
    """Listens on 127.0.0.1 in a thread of its own. ``cut``, ``hole`` and so on return how many connections they hit.

    ``pooling``: as a pooler in transaction mode would look like.
    """

    def __init__(self, target: Path, *, pooling: bool = False) -> None:
        self._target = target
        self._pooling = pooling
        self._ways: set[_Way] = set()
        self._delay = 0.0
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._serve, name="faults-proxy", daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    # what a test does to the connections

    def cut(self) -> int:
        """Both ends see their connection reset."""
        return self._do(self._cut)

    def half_close(self) -> int:
        """The server sees the end; the client sees nothing, and is never answered again."""
        return self._do(self._half_close)

    def hole(self) -> int:
        """Nothing gets through any more, in either direction, on present and new connections; until :meth:`heal`."""
        return self._do(self._hole)

    def delay(self, seconds: float) -> int:
        """Each piece of data takes so much longer, until :meth:`heal`."""

        def work() -> int:
            self._delay = seconds
            return len(self._ways)

        return self._do(work)

    def refuse(self) -> int:
        """Cut all connections, and accept no new one until :meth:`heal`."""

        def work() -> int:
            self._refusing = True
            return self._cut()

        return self._do(work)

    def heal(self) -> int:
        """All is well again: what was held back in a hole gets through now."""

        def work() -> int:
            self._delay, self._refusing = 0.0, False
            for way in self._ways:
                way.passing.set()
            self._holed = False
            return len(self._ways)

        return self._do(work)

    # in the loop

    _holed = False

    def _cut(self) -> int:
        cut = 0
        for way in self._ways:
            for writer in (way.client, way.server):
                sock = writer.get_extra_info("socket")
                if sock is not None and sock.family == socket.AF_INET and sock.fileno() >= 0:  # not closed just now
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            cut += 1
        return cut

    def _half_close(self) -> int:
        count = 0
        for way in self._ways:
            if not way.halved:
                way.halved = True
                way.server.write_eof()
                count += 1
        return count

    def _hole(self) -> int:
        self._holed = True
        for way in self._ways:
            way.passing.clear()
        return len(self._ways)

    def _do(self, work: Callable[[], int]) -> int:
        async def run() -> int:
            return work()

        return self._call(run())

    def _call(self, coroutine: Coroutine[Any, Any, int]) -> int:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def begin() -> None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self._started.set()

        self._loop.run_until_complete(begin())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self._target))
        except OSError:  # the server is away
            writer.transport.abort()
            return
        way = _Way(writer, to_server)
        if self._holed:
            way.passing.clear()
        self._ways.add(way)
        try:
            await asyncio.gather(
                self._pump(reader, to_server, way, lambda: False),
                self._pump(from_server, writer, way, self._kept(way), Pooling() if self._pooling else None),
            )
        finally:
            self._ways.discard(way)
            for end in (writer, to_server):
                end.transport.abort()

    @staticmethod
    def _kept(way: _Way) -> Callable[[], bool]:
        return lambda: way.halved

    async def _pump(
        self,
        source: asyncio.StreamReader,
        to: asyncio.StreamWriter,
        way: _Way,
        swallowed: Callable[[], bool],
        changed: Callable[[bytes], bytes] | None = None,
    ) -> None:
        try:
            while True:
                data = await source.read(65536)
                await way.passing.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                if swallowed():
                    if not data:
                        return  # the server has closed; the client is left alone with its connection
                    continue
                if not data:
                    break
                if way.halved:
                    continue  # the peer reads no more
                to.write(data if changed is None else changed(data))
                await to.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        # One end is gone: so is the other, unless it is to believe that nothing has happened.
        for end in (way.client, way.server):
            if not (way.halved and end is way.client):
                end.transport.abort()

    def close(self) -> None:
        self._do(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
