"""The `Sandbox` protocol over a container of this machine: what the exec server grades in."""

from __future__ import annotations

import posixpath

from swe_rl.sandbox.container.container import Container
from swe_rl.sandbox.container.files import read_file, write_file
from swe_rl.sandbox.protocol import DEFAULT_OUTPUT_LIMIT
from swe_rl.types import ExecResult


class ContainerSandbox:
    """Does not own the container unless `owned`: then `close` destroys it."""

    def __init__(self, container: Container, workdir: str = "", *, owned: bool = False) -> None:
        self.workdir = workdir or container.cwd
        self._container, self._owned = container, owned

    async def exec(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        return await self._container.exec(
            command, timeout=timeout, cwd=cwd or self.workdir, env=env, output_limit=output_limit
        )

    async def upload(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.upload`."""
        await write_file(self._container, posixpath.join(self.workdir, path), data, mode)

    async def download(self, path: str, *, max_bytes: int) -> bytes:
        """See `Sandbox.download`."""
        return await read_file(self._container, posixpath.join(self.workdir, path), max_bytes)

    async def close(self) -> None:
        if self._owned:
            await self._container.destroy()
