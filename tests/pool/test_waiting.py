"""The line: runs take turns, inside a run first come, first served."""

from __future__ import annotations

import asyncio

from swe_rl.sandbox.pool_server.waiting import Ticket, WaitingLine


def ticket(run: str, avoid: set[str] | None = None) -> Ticket[str]:
    return Ticket(run, "img", asyncio.get_running_loop().create_future(), avoid or set())


async def serve(line: WaitingLine[str], slots: int) -> list[Ticket[str]]:
    order: list[Ticket[str]] = []

    def place(one: Ticket[str]) -> str | None:
        if len(order) == slots:
            return None
        order.append(one)
        return "slot"

    line.serve(place)
    return order


async def test_runs_take_turns_however_many_one_of_them_asks_for() -> None:
    line: WaitingLine[str] = WaitingLine()
    big = [ticket("big") for _ in range(5)]
    small = [ticket("small") for _ in range(2)]
    for one in big + small:
        line.join(one)
    order = await serve(line, 4)
    assert order == [big[0], small[0], big[1], small[1]]
    assert line.lengths() == {"big": 3}


async def test_turns_go_on_where_they_stopped() -> None:
    line: WaitingLine[str] = WaitingLine()
    a, b = [ticket("a") for _ in range(3)], [ticket("b") for _ in range(3)]
    for one in a + b:
        line.join(one)
    got = [(await serve(line, 1))[0] for _ in range(4)]
    assert got == [a[0], b[0], a[1], b[1]]


async def test_who_left_or_was_cancelled_gets_nothing() -> None:
    line: WaitingLine[str] = WaitingLine()
    gone, cancelled, stays = ticket("r"), ticket("r"), ticket("r")
    for one in (gone, cancelled, stays):
        line.join(one)
    line.leave(gone)
    line.leave(gone)
    cancelled.granted.cancel()
    assert await serve(line, 3) == [stays]
    assert len(line) == 0


async def test_a_ticket_that_avoids_the_free_node_does_not_block_its_run() -> None:
    line: WaitingLine[str] = WaitingLine()
    picky, easy = ticket("r", {"n1"}), ticket("r")
    line.join(picky)
    line.join(easy)
    free = ["n1"]
    line.serve(lambda one: free.pop() if free and free[0] not in one.avoid else None)
    assert easy.granted.done() and not picky.granted.done()
