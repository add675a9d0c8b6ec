"""The message of a client that no server answered gives the host and the port."""

import pytest

from corral.containment.violations.error_patterns import local_port_in, unanswered_host_in

MESSAGES = {
    "curl": "curl: (7) Failed to connect to 127.0.0.1 port 5433 after 0 ms: Couldn't connect to server",
    "curl, by name": "curl: (7) Failed to connect to localhost port 5433 after 0 ms: Connection refused",
    "wget": "Connecting to localhost (localhost)|127.0.0.1|:5433... failed: Connection refused.",
    "psql": 'psql: error: connection to server at "localhost" (127.0.0.1), port 5433 failed: Connection refused',
    "psql, the second address": 'connection to server at "localhost" (::1), port 5433 failed: Connection refused',
    "redis-cli": "Could not connect to Redis at 127.0.0.1:5433: Connection refused",
    "node": "Error: connect ECONNREFUSED 127.0.0.1:5433",
    "node, IPv6": "Error: connect ECONNREFUSED ::1:5433",
    "go": "dial tcp [::1]:5433: connect: connection refused",
    "Java": "org.postgresql.util.PSQLException: Connection to localhost:5433 refused. Check that",
    "mysql": "ERROR 2003 (HY000): Can't connect to MySQL server on '127.0.0.1:5433' (111)",
}
SILENT = {
    "another host": "curl: (7) Failed to connect to 192.0.2.1 port 5433 after 0 ms: Connection refused",
    "no refusal": "serving on 127.0.0.1:5433",
    "no port": "ConnectionRefusedError: [Errno 111] Connection refused",
    "a number that is no port": "refused 127.0.0.1:543399999",
}


@pytest.mark.parametrize("said", MESSAGES.values(), ids=MESSAGES)
def test_refused_connection_gives_the_port(said: str) -> None:
    assert local_port_in(said) == 5433


@pytest.mark.parametrize("said", SILENT.values(), ids=SILENT)
def test_other_output_gives_none(said: str) -> None:
    assert local_port_in(said) == 0


BY_NAME = {
    "curl": "curl: (7) Failed to connect to own.example port 5433 after 0 ms: Couldn't connect to server",
    "wget": "Connecting to own.example (own.example)|127.64.0.1|:5433... failed: Connection refused.",
    "psql": 'psql: error: connection to server at "own.example" (127.64.0.1), port 5433 failed: Connection refused',
    "redis-cli": "Could not connect to Redis at own.example:5433: Connection refused",
    "ssh": "ssh: connect to host own.example port 5433: Connection refused",
    "nc": "nc: connect to own.example (127.64.0.1) port 5433 (tcp) failed: Connection refused",
    "Java": "org.postgresql.util.PSQLException: Connection to own.example:5433 refused. Check that",
    "mysql": "ERROR 2003 (HY000): Can't connect to MySQL server on 'own.example:5433' (111)",
}


@pytest.mark.parametrize("said", BY_NAME.values(), ids=BY_NAME)
def test_refused_connection_gives_the_host(said: str) -> None:
    assert unanswered_host_in(said) == "own.example:5433"


def test_refused_connection_gives_an_address() -> None:
    assert unanswered_host_in("Error: connect ECONNREFUSED 127.64.0.1:5433") == "127.64.0.1:5433"
    said = "curl: (7) Failed to connect to 2001:db8::1 port 80 after 0 ms: Couldn't connect to server"
    assert unanswered_host_in(said) == "[2001:db8::1]:80"
    assert unanswered_host_in("curl: (6) Could not resolve host: own.example") == ""
