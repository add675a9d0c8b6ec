"""The list of a session's ports has those of localhost, and not those on which the proxy listens for granted names."""

import os
import socket

from corral.containment.network.listening_ports import listening_ports


def test_ports_of_localhost_are_listed_and_those_of_names_are_not() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_server(("0.0.0.0", 0)) as every,
        # Bound without listening, so that no other program has the port on localhost.
        socket.socket() as kept,
    ):
        kept.bind(("127.0.0.1", 0))
        with socket.create_server(("127.64.0.1", kept.getsockname()[1])) as name:
            found = listening_ports(os.getpid())
            ports = [server.getsockname()[1] for server in (own, every, name)]
    assert [port in found for port in ports] == [True, True, False]
