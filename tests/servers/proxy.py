"""A proxy that makes a server slow and unreliable, and counts: ``python -m tests.servers.proxy PORT TARGET``.

It understands as much of HTTP/1.1 as it takes to tell one request from the next on an open connection. It is
told what to do by requests of its own, to paths below /-proxy/.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.servers.processes import free_port, request, server
from tests.servers.rules import Behaviour, Harm, Judge, Rule, Traffic

_CONTROL = "/-proxy/"
_CHUNK = 1 << 18
_FAILURES = {
    "fail": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "deny": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
}


@dataclass(frozen=True)
class Proxy:
    """A running proxy."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def behave(self, *rules: Rule, **settings: Any) -> None:
        """Change how requests are treated (`Behaviour`), and count from 0 again."""
        behaviour = Behaviour(rules=rules, **settings)
        request(self.port, "PUT", f"{_CONTROL}behaviour", behaviour.dump())

    def traffic(self) -> Traffic:
        """Return what has passed since the last `behave`."""
        return Traffic(**json.loads(request(self.port, "GET", f"{_CONTROL}traffic")))


@contextlib.contextmanager
def proxy_of(target_port: int) -> Iterator[Proxy]:
    """Run a proxy of a server on this machine until the block ends."""
    port = free_port()
    with server("tests.servers.proxy", [port, target_port], port, health=f"{_CONTROL}traffic"):
        yield Proxy(port)


class _ClosedError(Exception):
    """The other side is gone."""


@dataclass(frozen=True)
class _Head:
    """First lines of a request or an answer."""

    raw: bytes
    first: list[str]
    fields: dict[str, str]

    @property
    def length(self) -> int | None:
        return int(self.fields["content-length"]) if "content-length" in self.fields else None

    @property
    def chunked(self) -> bool:
        return "chunked" in self.fields.get("transfer-encoding", "").lower()


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _ClosedError from None
    first, *lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return _Head(raw, first.split(" "), {name.lower(): value.strip() for name, _, value in pairs})


class _Link:
    """What all answers share on their way to clients."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def carry(self, size: int) -> None:
        """Wait until so many bytes have passed behind those of others."""
        if self._rate:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._rate
            await asyncio.sleep(self._free_at - now)


_FREE = _Link(0.0)


class _Server:
    def __init__(self, target: int) -> None:
        self._target = target
        self._judge = Judge(Behaviour())
        self._link = _FREE
        self._traffic = Traffic()
        self._at_once = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the requests of one connection, over one connection of our own."""
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head = await _read_head(reader)
                if head.first[1].startswith(_CONTROL):
                    await self._control(head, reader, writer)
                    continue
                if upstream is None or upstream[0].at_eof():
                    upstream = await asyncio.open_connection("127.0.0.1", self._target, limit=1 << 20)
                if await self._pass_on(head, reader, writer, upstream):
                    upstream[1].close()
                    upstream = None
        except (_ClosedError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for stream in (writer, *(upstream[1:] if upstream else ())):
                stream.close()

    async def _control(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.readexactly(head.length or 0)
        if head.first[0] == "PUT":
            self._judge, self._traffic = Judge(Behaviour.parse(body)), Traffic()
            self._link = _Link(self._judge.behaviour.bytes_per_second)
        answer = json.dumps(asdict(self._traffic)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()

    async def _pass_on(
        self,
        head: _Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Handle one request; return whether the server closes its connection behind it."""
        method, path = head.first[0], head.first[1]
        judge, traffic = self._judge, self._traffic
        traffic.requests += 1
        traffic.asked.append([method, path, head.fields.get("range", "")])
        self._at_once += 1
        traffic.most_at_once = max(traffic.most_at_once, self._at_once)
        try:
            harm = judge.harm(method, path)
            traffic.harmed += harm is not None
            await asyncio.sleep(judge.behaviour.latency)
            if harm == "stall":
                await asyncio.sleep(judge.behaviour.stall_seconds)
            if harm in ("drop", "stall"):
                raise _ClosedError
            upstream[1].write(head.raw)
            # A server that waits for more of a request than its head says so before.
            if head.fields.get("expect", "").lower() == "100-continue":
                writer.write((await _read_head(upstream[0])).raw)
            await _relay(head, reader, upstream[1], traffic.sent)
            answer = await _read_head(upstream[0])
            while answer.first[1] == "100":
                answer = await _read_head(upstream[0])
            old = answer.first[0] == "HTTP/1.0" and answer.fields.get("connection", "") != "keep-alive"
            closes = old or answer.fields.get("connection", "").lower() == "close"
            if harm in _FAILURES:
                await _relay(answer, upstream[0], None, lambda size: None, method)
                writer.write(_FAILURES[harm])
                await writer.drain()
                return closes
            writer.write(answer.raw)
            await _relay(answer, upstream[0], writer, traffic.received, method, harm, self._link)
            return closes
        finally:
            self._at_once -= 1


async def _relay(
    head: _Head,
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter | None,
    count: Callable[[int], None],
    method: str = "",
    harm: Harm | None = None,
    link: _Link = _FREE,
) -> None:
    """Pass on the body that follows a head, counting bytes. method: of the request, behind an answer."""
    if method == "HEAD" or head.first[1] in ("204", "304"):
        return
    if head.chunked:
        await _relay_chunks(source, sink, count)
        return
    length = head.length
    if length is None:
        # A request without a length has no body; an answer without one ends with the connection.
        length = 0 if not method else sys.maxsize
    passed = 0
    while passed < length:
        data = await source.read(min(_CHUNK, length - passed))
        if not data:
            raise _ClosedError
        if harm == "corrupt":
            # The last byte of the first piece: neither a header nor always the same place.
            data, harm = data[:-1] + bytes([data[-1] ^ 0xFF]), None
        if harm == "cut":
            data = data[: len(data) // 2]
        passed += len(data)
        # Before it is sent: who has it all may be gone before this end notices.
        count(len(data))
        await link.carry(len(data))
        if sink is not None:
            sink.write(data)
            await sink.drain()
        if harm == "cut":
            raise _ClosedError


async def _relay_chunks(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter | None, count: Callable[[int], None]
) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        data = await source.readexactly(size + 2)
        count(size)
        if sink is not None:
            sink.write(line + data)
            await sink.drain()
        if not size:
            return


async def _main(port: int, target: int) -> None:
    listening = await asyncio.start_server(_Server(target).serve, "127.0.0.1", port, limit=1 << 20)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
