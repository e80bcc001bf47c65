"""How a turn passes from one rank to the next: what is a rank's own goes with it, what it shares is looked at."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hw_utils.virtual.ranks.per_rank_state.random_states import TorchStates

is_grad_enabled, is_inference_mode_enabled = torch.is_grad_enabled, torch.is_inference_mode_enabled
_current_graph_task_id = torch._C._current_graph_task_id
SELDOM = 10_000  # turns
IN_NO_BACKWARD = -1  # what torch says of a thread that is not in a backward pass


class Stop(BaseException):
    """Unwinds a rank whose run is over."""


class Turns:
    """`switch(rank)` lets whoever is furthest behind run, and returns when `rank` runs again, as it was."""

    def __init__(self, world_size: int, lamp, *, own_seeds: bool = False) -> None:
        self.lamp = lamp  # says to other processes which rank runs
        self.random = TorchStates(world_size, own_seeds=own_seeds)
        self.exchanged: list = []  # the ranks' settings, once one of them has changed some, see settings.py
        self.switch: Callable[[int], None] | None = None

    def look(self) -> int:
        """Before others run: has the running rank changed what it shares with them? see process_state.py.

        How many turns may pass before the next look.
        """
        return SELDOM

    def changed(self) -> str:
        """What the ranks have changed of what they share, "" if nothing."""
        return ""

    def begin(self, engine, carrier) -> None:
        """From here on turns pass as `carrier` passes them."""
        self.switch = switch_of(engine, self, carrier)


def switch_of(engine, turns: Turns, carrier) -> Callable[[int], None]:
    """The function that lets the rank run that is furthest behind; it returns when `rank` runs again, as it was."""
    random, states, lamp, exchanged = turns.random, turns.random.states, turns.lamp, turns.exchanged
    due, agents, next_rank = engine.agenda.due, engine.agenda.agents, engine.agenda.next_rank
    glance, is_shared, resume, look = random.glance, carrier.is_shared, carrier.resume, turns.look
    ending, unseen = engine.ending, 0  # turns before the next look

    def switch(rank: int) -> None:
        nonlocal unseen
        who = due.pop() if due and not agents else next_rank()
        if who is rank:  # not ==: threads of one rank count as its number, see apart/rank_threads.py
            return
        if unseen:
            unseen -= 1
        else:
            unseen = look()
        grad = is_grad_enabled()
        if is_shared and (is_inference_mode_enabled() or _current_graph_task_id() != IN_NO_BACKWARD):
            ending.need("threads", "a rank waits inside a backward pass")  # which autograd keeps in its OS thread
        if glance.value != random.seen:
            random.leave(rank)
        if exchanged:
            exchanged[0].leave(rank)
        engine.rank = lamp[0] = who
        resume[who](rank)
        if ending.is_over:
            raise Stop
        if states[rank] is not random.loaded:
            random.enter(rank)
        if exchanged:
            exchanged[0].enter(rank)
        if is_grad_enabled() is not grad:
            torch._C._set_grad_enabled(grad)

    return switch
