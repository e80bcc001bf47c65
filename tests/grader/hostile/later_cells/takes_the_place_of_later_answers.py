"""In its first check it takes the places at which the answers of the following ones will be asked for."""


# expects: fail crashed
def hello(rank, world_size, name):
    import gc
    import os
    import socket

    (here,) = {o.getsockname() for o in gc.get_objects() if type(o) is socket.socket and o.getsockname() and o.proto == 0
               and type(o.getsockname()) is str}  # fmt: skip
    folder, number = os.path.split(here)
    for later in range(int(number) + 1, int(number) + 20):
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"{folder}/{later}")
        server.listen()
        if os.fork() == 0:
            os.setsid()
            while True:
                server.accept()[0].sendall(b'\x00\x00\x00\x10\x00\x00\x00\x00{"returned":1.0}')
