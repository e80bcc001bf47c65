"""Connects to the world."""

# expects: fail
import socket

for address in (("1.1.1.1", 53), ("8.8.8.8", 443), ("169.254.169.254", 80)):
    with socket.socket() as s:
        s.settimeout(1)
        try:
            s.connect(address)
        except OSError as error:
            print("blocked:", error)
        else:
            raise RuntimeError("connected")
try:
    print(socket.getaddrinfo("example.org", 80))
except OSError as error:
    print("blocked:", error)
