"""Fills the buffers of sockets, which are the kernel's memory and no process's."""

# expects: limit
import os
import socket


def make_sockets():
    held = []
    try:
        while True:
            pair = socket.socketpair()
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)
                end.setblocking(False)
            held.append(pair)
    except OSError as error:
        print("stopped:", len(held), error, flush=True)
    return held


def fill(held):
    for one, _ in held:
        try:
            while True:
                one.send(bytes(2**16))
        except OSError:
            continue


for _ in range(3):
    if os.fork() == 0:
        break
kept = make_sockets()  # all of them first: on a busy machine filling each takes longer than a cell may
fill(kept)
while True:
    os.sched_yield()
