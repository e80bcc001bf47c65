"""How a turn passes from one rank to the next: what is a rank's own goes with it, what it shares is looked at."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

from hw_utils.virtual.ranks.own.random_states import TorchStates

is_grad_enabled, is_inference_mode_enabled = torch.is_grad_enabled, torch.is_inference_mode_enabled
_current_graph_task_id = torch._C._current_graph_task_id
FIRST_TURNS = 4  # of a rank
IN_NO_BACKWARD = -1  # what torch says of a thread that is not in a backward pass


class Stop(BaseException):
    """Unwinds a rank whose run is over."""


class Turns:
    """`switch(rank)` lets whoever is furthest behind run, and returns when `rank` runs again, as it was."""

    def __init__(self, world_size: int, lamp) -> None:
        self.lamp = lamp  # says to other processes which rank runs
        self.random = TorchStates(world_size)
        self.exchanged: list = []  # the ranks' settings, once one of them has changed some, see settings.py
        self.switch: Callable[[int], None] | None = None
        self.plain_switch: Callable[[int], None] | None = None
        self.is_watched = False

    def look(self) -> None:
        """Called before others run: has the running rank changed what it shares with them? see process_state.py."""

    def changed(self) -> str:
        """What the ranks have changed of what they share, "" if nothing."""
        return ""

    def begin(self, engine, carrier) -> None:
        """From here on turns pass as `carrier` passes them; the first ones, where programs set what they set, look."""
        self.plain_switch = switch_of(engine, self, carrier)
        self.watch(FIRST_TURNS * len(engine.running))

    def watch(self, turns: float = inf) -> None:
        """From now on so many switches look first, those of the short cuts too."""
        left = turns

        def looked(rank: int) -> None:
            nonlocal left
            self.look()
            left -= 1
            if left < 0 and self.switch is looked:
                self.switch, self.is_watched = self.plain_switch, False
            self.plain_switch(rank)

        self.switch, self.is_watched = looked, True


def switch_of(engine, turns: Turns, carrier) -> Callable[[int], None]:
    """The function that lets the rank run that is furthest behind; it returns when `rank` runs again, as it was."""
    random, states, lamp, exchanged = turns.random, turns.random.states, turns.lamp, turns.exchanged
    due, agents, next_rank = engine.agenda.due, engine.agenda.agents, engine.agenda.next_rank
    glance, is_shared, resume = random.glance, carrier.is_shared, carrier.resume

    def switch(rank: int) -> None:
        who = due.pop() if due and not agents else next_rank()
        if who is rank:  # not ==: threads of one rank count as its number, see apart/lanes.py
            return
        grad = is_grad_enabled()
        if is_shared and (is_inference_mode_enabled() or _current_graph_task_id() != IN_NO_BACKWARD):
            engine.need("threads", "a rank waits inside a backward pass")  # which autograd keeps in its OS thread
        if glance.value != random.seen:
            random.leave(rank)
        if exchanged:
            exchanged[0].leave(rank)
        engine.rank = lamp[0] = who
        resume[who](rank)
        if engine.is_over:
            raise Stop
        if states[rank] is not random.loaded:
            random.enter(rank)
        if exchanged:
            exchanged[0].enter(rank)
        if is_grad_enabled() is not grad:
            torch._C._set_grad_enabled(grad)

    return switch
