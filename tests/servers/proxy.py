"""A proxy that makes a server slow and unreliable, and counts: ``python -m tests.servers.proxy PORT TARGET``.

Tests control it by requests to paths below /-proxy/.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, TCPConnector, web
from yarl import URL

from tests.servers.processes import free_port, request, server
from tests.servers.rules import Behaviour, Harm, Judge, Rule, Traffic

_CONTROL = "/-proxy/"
_CHUNK = 1 << 18
_FAILURES = {"fail": 503, "deny": 403}
_PER_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect"}


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


class _Server:
    def __init__(self, target: int) -> None:
        self._target = target
        self._treat(Behaviour())
        self._at_once = 0

    def _treat(self, behaviour: Behaviour) -> None:
        self._judge, self._traffic = Judge(behaviour), Traffic()
        self._free_at = 0.0

    async def session(self, app: web.Application) -> AsyncIterator[None]:
        """Keep connections to the server open as long as the proxy runs."""
        connector = TCPConnector(limit=0)
        ours = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
        async with ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=ours
        ) as self._upstream:
            yield

    async def control(self, asked: web.Request) -> web.Response:
        if asked.method == "PUT":
            self._treat(Behaviour.parse(await asked.read()))
        return web.json_response(asdict(self._traffic))

    async def pass_on(self, asked: web.Request) -> web.StreamResponse:
        judge, traffic = self._judge, self._traffic
        traffic.requests += 1
        traffic.asked.append([asked.method, asked.raw_path, asked.headers.get("Range", "")])
        self._at_once += 1
        traffic.most_at_once = max(traffic.most_at_once, self._at_once)
        try:
            harm = judge.harm(asked.method, asked.raw_path)
            traffic.harmed += harm is not None
            await asyncio.sleep(judge.behaviour.latency)
            if harm == "stall":
                await asyncio.sleep(judge.behaviour.stall_seconds)
            if harm in ("drop", "stall"):
                return _hung_up(asked)
            body = await asked.read()
            traffic.sent(len(body))
            return await self._answered(asked, body, harm, traffic)
        finally:
            self._at_once -= 1

    async def _answered(
        self, asked: web.Request, body: bytes, harm: Harm | None, traffic: Traffic
    ) -> web.StreamResponse:
        address = URL(f"http://127.0.0.1:{self._target}{asked.raw_path}", encoded=True)
        headers = _passed_on(asked.headers)
        try:
            async with self._upstream.request(
                asked.method, address, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                if harm in _FAILURES:
                    await answer.read()
                    return web.Response(status=_FAILURES[harm])
                return await self._relayed(asked, answer, harm, traffic)
        except ClientError:
            return _hung_up(asked)

    async def _relayed(
        self, asked: web.Request, answer: ClientResponse, harm: Harm | None, traffic: Traffic
    ) -> web.StreamResponse:
        found = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
        await found.prepare(asked)
        async for data in answer.content.iter_chunked(_CHUNK):
            part = data
            if harm == "corrupt":
                # The last byte of the first piece: neither a header nor always the same place.
                part, harm = data[:-1] + bytes([data[-1] ^ 0xFF]), None
            if harm == "cut":
                part = data[: len(data) // 2]
            # Before it is sent: who has it all may be gone before this end notices.
            traffic.received(len(part))
            await self._carry(len(part))
            await found.write(part)
            if harm == "cut":
                return _hung_up(asked)
        await found.write_eof()
        return found

    async def _carry(self, size: int) -> None:
        """Wait until so many bytes have passed over the link behind those of other answers."""
        rate = self._judge.behaviour.bytes_per_second
        if rate:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / rate
            await asyncio.sleep(self._free_at - now)


def _passed_on(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _PER_CONNECTION]


def _hung_up(asked: web.Request) -> web.StreamResponse:
    """Close a connection instead of answering, or in the middle of the answer."""
    if asked.transport is not None:
        asked.transport.close()
    return web.Response()


def _application(target: int) -> web.Application:
    proxy = _Server(target)
    app = web.Application(client_max_size=0)
    app.cleanup_ctx.append(proxy.session)
    app.router.add_route("*", _CONTROL + "{what}", proxy.control)
    app.router.add_route("*", "/{path:.*}", proxy.pass_on)
    return app


if __name__ == "__main__":
    port, target = map(int, sys.argv[1:])
    web.run_app(_application(target), host="127.0.0.1", port=port, print=None, access_log=None)
