"""A port for a server that is about to start. Only the standard library."""

import random
import socket


def free_port():
    """Not one of those that the system gives to who asks for any: another program would, before the server takes it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first_given = int(file.read().split()[0])
    while True:
        port = random.randrange(first_given * 2 // 3, first_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
