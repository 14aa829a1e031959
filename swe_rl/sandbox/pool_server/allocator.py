"""From a request to an open lease: wait in line, reserve a slot on disk, create the container, or say why not."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter

from swe_rl.deadline import Deadline
from swe_rl.owned_tasks import cancel_all
from swe_rl.sandbox.container.engine import LEASE_LABEL
from swe_rl.sandbox.exec_server.requests import LONGEST
from swe_rl.sandbox.pool_server.book import Book
from swe_rl.sandbox.pool_server.closer import Closer
from swe_rl.sandbox.pool_server.faults import PoolFault
from swe_rl.sandbox.pool_server.fleet import Fleet
from swe_rl.sandbox.pool_server.lease import Lease, LeaseState
from swe_rl.sandbox.pool_server.node_api import CREATE_PATH, NodeApi, NodeRefused, NodeUnreachable
from swe_rl.sandbox.pool_server.requests import AllocateBody
from swe_rl.sandbox.pool_server.settings import PoolSettings
from swe_rl.sandbox.pool_server.waiting import Ticket, WaitingLine

LABEL_POOL, LABEL_RUN = "swe-rl.pool", "swe-rl.run"
FOR_GOOD = ("bad_request", "image_missing", "image_unusable")  # of this node; another may have the image or allow more
SHORTEST_CREATE = 1.0  # seconds, however little is left
RETRY_PAUSE = 1.0  # seconds before all nodes that failed this request are tried again


class Allocator:
    """One owned task per idempotency key: a retry of a request joins the task or gets the lease that it made."""

    def __init__(self, pool_id: str, book: Book, fleet: Fleet, closer: Closer, api: NodeApi, settings: PoolSettings):
        self.line: WaitingLine[Lease] = WaitingLine()
        self._pool_id, self._book, self._fleet, self._closer = pool_id, book, fleet, closer
        self._api, self._settings = api, settings
        self._tasks: dict[str, tuple[str, asyncio.Task[Lease]]] = {}
        self._listeners: Counter[str] = Counter()
        self.stopping = False  # the pool closes: nobody is let in any more
        self._creating: set[str] = set()  # keys whose container is being made: no longer cancelled

    async def allocate(self, request: AllocateBody) -> Lease:
        """An open lease. Raises PoolFault: unavailable, lease_gone (the key's has ended), or of FOR_GOOD what all nodes said."""
        if self.stopping:
            raise PoolFault("unavailable", "the pool server is closing")
        key = request.idempotency_key
        known = self._book.of_key(key)
        if known is not None and known.state is not LeaseState.CREATING:
            _same_request(known.request, request)
            if known.state is not LeaseState.OPEN:
                raise PoolFault("lease_gone", f"the lease of this request has ended: {known.reason}")
            known.claimed = True
            return known
        first, task = self._tasks.get(key, (request.fingerprint(), None))
        _same_request(first, request)
        if task is None:
            task = asyncio.create_task(self._allocate(request), name=f"allocate {key}")
            self._tasks[key] = (first, task)
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        self._listeners[key] += 1
        try:
            lease = await asyncio.shield(task)
            lease.claimed = True
            return lease
        except asyncio.CancelledError:
            if task.cancelled():
                raise PoolFault("unavailable", "the pool server gave this request up") from None
            asyncio.get_running_loop().call_later(self._settings.abandon_grace, self._drop_if_abandoned, key, task)
            raise
        finally:
            self._listeners[key] -= 1
            if not self._listeners[key]:
                del self._listeners[key]

    def serve(self) -> None:
        """Hand free slots to those who wait. Called whenever a slot or a node may have become free."""
        if not self.stopping and len(self.line) and self._fleet.free_slots():
            self.line.serve(self._place)

    async def aclose(self) -> None:
        await cancel_all(task for _, task in self._tasks.values())

    def _drop_if_abandoned(self, key: str, task: asyncio.Task[Lease]) -> None:
        """Nobody came back for this request: it leaves the line, or what was made for it is closed again."""
        if key in self._listeners:
            return
        if key not in self._creating:
            task.cancel()
        task.add_done_callback(lambda done: self._close_unclaimed(key, done))

    def _close_unclaimed(self, key: str, task: asyncio.Task[Lease]) -> None:
        if key in self._listeners or task.cancelled() or task.exception() is not None or task.result().claimed:
            return
        self._closer.begin(task.result(), "its caller hung up while it was being made")

    def _place(self, ticket: Ticket[Lease]) -> Lease | None:
        node = self._fleet.choose(ticket.image, ticket.avoid)
        if node is None:
            return None
        now = time.time()
        lease_id = uuid.uuid4().hex
        state = LeaseState.CREATING
        lease = Lease(lease_id, None, ticket.run, "", ticket.image, node.url, "", state, "", now, now, now, now, 0)
        self._book.reserve(lease)
        return lease

    async def _allocate(self, request: AllocateBody) -> Lease:
        deadline = Deadline(min(request.deadline_s, request.wait_s or request.deadline_s))
        ends_at = time.time() + request.deadline_s + self._settings.deadline_grace
        avoid: set[str] = set()  # nodes that failed just now
        lacking: set[str] = set()  # nodes that refuse this request for good
        failures: list[str] = []
        while not deadline.expired():
            lease = await self._wait(request, avoid | lacking, deadline, failures)
            lease.instance_id, lease.request = request.instance_id, request.fingerprint()
            lease.deadline_at = ends_at
            lease.ttl = request.ttl_s or self._settings.default_ttl
            try:
                return await self._create(lease, request, deadline)
            except NodeRefused as error:
                if error.kind in FOR_GOOD:
                    lacking.add(lease.node)
                    if all(url in lacking for url, node in self._fleet.nodes.items() if node.usable):
                        raise PoolFault(error.kind, str(error)) from error
                failures.append(str(error))
            except NodeUnreachable as error:
                failures.append(str(error))
            avoid.add(lease.node)
            if all(url in avoid | lacking for url, node in self._fleet.nodes.items() if node.usable):
                avoid.clear()
                await asyncio.sleep(deadline.bound(RETRY_PAUSE))
        raise PoolFault("unavailable", self._why(request, failures))

    async def _wait(self, request: AllocateBody, avoid: set[str], deadline: Deadline, failures: list[str]) -> Lease:
        ticket: Ticket[Lease] = Ticket(
            request.run, request.image, asyncio.get_running_loop().create_future(), set(avoid)
        )
        try:
            self.line.join(ticket)
            self.serve()
            await asyncio.wait({ticket.granted}, timeout=deadline.remaining())
            if ticket.granted.done():
                return ticket.granted.result()
            raise PoolFault("unavailable", self._why(request, failures))
        except BaseException:
            self.line.leave(ticket)
            # Granted in the same moment: give the slot back, nothing was made there.
            if ticket.granted.done() and ticket.granted.exception() is None:
                await self._book.change(ticket.granted.result(), LeaseState.CLOSED, "its caller had gone")
                self.serve()
            raise
        finally:
            ticket.granted.cancel()

    async def _create(self, lease: Lease, request: AllocateBody, deadline: Deadline) -> Lease:
        """The lease is on disk before the node hears of it; whatever happens after, closing it cleans up."""
        key = request.idempotency_key
        lease.allocate_key = key
        self._creating.add(key)
        try:
            self._book.remember_key(lease)
            await self._book.save(lease)
            if deadline.expired():
                raise NodeRefused(503, "unavailable", f"a place on {lease.node} became free when the time was up")
            payload = {
                "image": request.image,
                "cwd": request.cwd,
                "timeout": min(max(deadline.remaining(), SHORTEST_CREATE), LONGEST),
                "name": lease.container_name,
                "env": request.env,
                "network": request.network,
                "limits": request.limits,
                "labels": {LABEL_POOL: self._pool_id, LEASE_LABEL: lease.id, LABEL_RUN: lease.run},
                "idempotency_key": lease.id,
            }
            answer = await self._api.call(lease.node, CREATE_PATH, payload, timeout=deadline.remaining() + 5.0)
            if lease.state is not LeaseState.CREATING:
                raise NodeRefused(410, "node_unknown", f"{lease.node} was taken out of the pool meanwhile")
            lease.container_id = str(answer["container_id"])
            lease.renew(time.time())
            await self._book.change(lease, LeaseState.OPEN)
            return lease
        except BaseException as error:
            if isinstance(error, NodeUnreachable):
                self._fleet.failed(lease.node, str(error))
            elif isinstance(error, NodeRefused):  # nothing is on its way there: the name tells all
                lease.container_id = lease.container_name
            self._book.forget_key(lease)
            self._closer.begin(lease, f"create failed: {error or type(error).__name__}"[:500])
            raise
        finally:
            self._creating.discard(key)

    def _why(self, request: AllocateBody, failures: list[str]) -> str:
        states = Counter(node.state for node in self._fleet.nodes.values())
        nodes = ", ".join(f"{count} {state}" for state, count in states.items()) or "none has joined"
        # The first is often the reason, the last only that the time was up.
        what = dict.fromkeys([failures[0], failures[-1]]) if failures else {}
        last = f"; failures: {', '.join(what)}" if what else ""
        waited = min(request.deadline_s, request.wait_s or request.deadline_s)
        return f"no sandbox for {request.image} within {waited:.0f} s (nodes: {nodes}; {len(self.line)} wait){last}"


def _same_request(first: str, request: AllocateBody) -> None:
    if first not in ("", request.fingerprint()):
        raise PoolFault("key_conflict", "this idempotency key belongs to another allocate request")
