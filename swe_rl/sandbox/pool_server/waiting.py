"""The line in front of a full pool: runs take turns, inside a run first come, first served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Place = TypeVar("Place")


@dataclass(eq=False)
class Ticket(Generic[Place]):
    """One request that waits. `granted` resolves to the place it got, or why it can get none; cancel it to leave the line."""

    run: str
    image: str
    granted: asyncio.Future[Place]
    avoid: set[str] = field(default_factory=set)  # nodes that have just failed this request


class WaitingLine(Generic[Place]):
    """Tickets by run. `serve` hands out places in turn until nobody can be placed."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, deque[Ticket[Place]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._runs.values())

    def lengths(self) -> dict[str, int]:
        return {run: len(tickets) for run, tickets in self._runs.items()}

    def join(self, ticket: Ticket[Place]) -> None:
        self._runs.setdefault(ticket.run, deque()).append(ticket)

    def leave(self, ticket: Ticket[Place]) -> None:
        """Idempotent."""
        tickets = self._runs.get(ticket.run)
        if tickets is not None and ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self._runs[ticket.run]

    def serve(self, place: Callable[[Ticket[Place]], Place | None]) -> None:
        """Grant places: `place(ticket)` takes and returns one, or None where the ticket fits nowhere now."""
        passed = 0
        while passed < len(self._runs):
            run = next(iter(self._runs))
            self._runs.move_to_end(run)  # whether served or not, the next turn is another run's
            passed = 0 if self._serve_run(run, place) else passed + 1

    def _serve_run(self, run: str, place: Callable[[Ticket[Place]], Place | None]) -> bool:
        for ticket in list(self._runs[run]):
            if ticket.granted.done():  # cancelled while it stood in line
                self.leave(ticket)
                return True
            try:
                got = place(ticket)
            except Exception as error:  # this ticket's own fault: those behind it are served
                self.leave(ticket)
                ticket.granted.set_exception(error)
                return True
            if got is not None:
                self.leave(ticket)
                ticket.granted.set_result(got)
                return True
            if not ticket.avoid:
                return False  # the pool is full for this ticket, so it is for the ones behind it
        return False
