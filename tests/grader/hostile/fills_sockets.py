"""Fills the buffers of sockets, which are the kernel's memory and no process's."""

# expects: limit
import os
import socket


def fill_sockets():
    held = []
    try:
        while True:
            pair = socket.socketpair()
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)
                end.setblocking(False)
            held.append(pair)
            try:
                while True:
                    pair[0].send(bytes(2**16))
            except OSError:
                continue
    except OSError as error:
        print("stopped:", len(held), error, flush=True)
    return held


for _ in range(3):
    if os.fork() == 0:
        kept = fill_sockets()
        while True:
            os.sched_yield()
kept = fill_sockets()
while True:
    os.sched_yield()
