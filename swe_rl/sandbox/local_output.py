"""Bounded output of a command: head and tail are kept, the middle is counted and dropped (design rule 5)."""

from __future__ import annotations

from collections import deque

from swe_rl.sandbox.protocol import cut_line


class BoundedOutput:
    """Collects at most about `limit` bytes, however much is fed: half of it from the start, half from the end."""

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"output limit must be at least 2 bytes, not {limit}")
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        return self.dropped > 0

    @property
    def dropped(self) -> int:
        """Bytes of the middle that `bytes` leaves out."""
        return max(0, self.total - self._head_limit - self._tail_limit)

    def bytes(self) -> bytes:
        """Everything that was fed, or head, a line that states the cut, and tail."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        tail = tail[-self._tail_limit :]
        return bytes(self._head) + cut_line(self.dropped).encode() + tail

    def text(self) -> str:
        """The same as text; bytes that are not UTF-8 become U+FFFD."""
        return self.bytes().decode("utf-8", errors="replace")
