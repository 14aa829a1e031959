"""The book in memory: every lease and how many slots of each node they hold. Changes reach the disk before they count."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from swe_rl.sandbox.pool_server.lease import Lease, LeaseState
from swe_rl.sandbox.pool_server.store import Store


class Book:
    """The one place where leases change state, so the slot counts cannot drift from the leases."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.leases: dict[str, Lease] = {}
        self._by_key: dict[str, Lease] = {}
        self._used: Counter[str] = Counter()
        self._renewed: set[str] = set()
        self._in_use: Counter[str] = Counter()

    def load(self, leases: list[Lease]) -> None:
        """Take over what the disk holds (at start)."""
        for lease in leases:
            self._insert(lease)

    def used(self, node: str) -> int:
        """Slots of `node` that are held by leases in any state but closed."""
        return self._used[node]

    def of_key(self, key: str) -> Lease | None:
        return self._by_key.get(key)

    def active(self, *states: LeaseState) -> list[Lease]:
        """Leases in `states` (default: all that hold a slot)."""
        return [lease for lease in self.leases.values() if (lease.state in states if states else lease.holds_slot)]

    def reserve(self, lease: Lease) -> None:
        """Take the slot at once; the caller must `save` it before it asks the node for anything."""
        self._insert(lease)

    async def save(self, lease: Lease) -> None:
        await self._store.save(lease)

    async def change(self, lease: Lease, state: LeaseState, reason: str = "") -> None:
        """Move a lease to `state`. The slot of a lease that becomes CLOSED is free after this."""
        if state is LeaseState.CLOSED and lease.holds_slot:
            self._used[lease.node] -= 1
        lease.state = state
        lease.reason = reason or lease.reason
        lease.changed_at = time.time()
        await self._store.save(lease)

    def remember_key(self, lease: Lease) -> None:
        """A retry with this lease's key finds this lease from now on."""
        assert lease.allocate_key is not None
        self._by_key[lease.allocate_key] = lease

    def forget_key(self, lease: Lease) -> None:
        """A failed try gives its key back, so that the next try of the same request can have it."""
        if lease.allocate_key is not None:
            self._by_key.pop(lease.allocate_key, None)
            lease.allocate_key = None

    def renew(self, lease: Lease) -> None:
        """A heartbeat: counts at once, reaches the disk with the next `flush` (a restart grants a fresh ttl anyway)."""
        lease.renew(time.time())
        self._renewed.add(lease.id)

    @contextlib.contextmanager
    def in_use(self, lease: Lease) -> Iterator[None]:
        """Around a caller's request: its open connection is as good as heartbeats."""
        self._in_use[lease.id] += 1
        try:
            yield
        finally:
            self._in_use[lease.id] -= 1
            if not self._in_use[lease.id]:
                del self._in_use[lease.id]
            self.renew(lease)

    def expired(self, lease: Lease, now: float) -> bool:
        return now > (lease.deadline_at if self._in_use[lease.id] else lease.expires_at)

    def renew_all(self) -> None:
        """After a restart or a pause of this process nobody could send heartbeats: grant every open lease one ttl."""
        for lease in self.active(LeaseState.OPEN):
            self.renew(lease)

    async def flush(self) -> None:
        """Write renewed leases to disk, together."""
        renewed = [self.leases[lease_id] for lease_id in self._renewed if lease_id in self.leases]
        self._renewed.clear()
        if renewed:
            await self._store.save(*renewed)

    async def prune(self, older_than: float) -> None:
        """Forget leases that were closed more than `older_than` seconds ago."""
        limit = time.time() - older_than
        old = [lease for lease in self.active(LeaseState.CLOSED) if lease.changed_at < limit]
        for lease in old:
            del self.leases[lease.id]
            self.forget_key(lease)
        if old:
            await self._store.delete_leases([lease.id for lease in old])

    def _insert(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        if lease.allocate_key is not None:
            self._by_key[lease.allocate_key] = lease
        if lease.holds_slot:
            self._used[lease.node] += 1
