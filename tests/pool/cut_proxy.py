"""A TCP proxy that cuts or silences connections when told: what a broken network looks like from both sides."""

from __future__ import annotations

import asyncio
import contextlib


class CutProxy:
    """Forwards to (host, port). `cut()` aborts every open connection at once, answers under way included.

    While `silent` is true everything is taken and nothing passed on: a machine without power behind a switch.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.silent = False

    async def start(self) -> CutProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()
            self.cuts += 1

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        target: asyncio.StreamWriter | None = None
        try:
            back, target = await asyncio.open_connection(*self._target)
            self._open.add(target)
            one = asyncio.create_task(self._pump(reader, target))
            two = asyncio.create_task(self._pump(back, writer))
            await asyncio.wait({one, two}, return_when=asyncio.FIRST_COMPLETED)
            for pump in (one, two):
                pump.cancel()
            await asyncio.gather(one, two, return_exceptions=True)
        except OSError:
            pass  # the target is down: the caller sees a closed connection, as it should
        finally:
            for side in (writer, target):
                if side is not None:
                    self._open.discard(side)
                    side.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
                    await writer.drain()
