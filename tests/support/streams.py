"""Reads from sockets. A stream has no messages: what was sent at once can arrive in pieces, on a busy machine in single bytes."""

import socket

END_OF_HEAD = b"\r\n\r\n"


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes, or fewer if the other side hangs up before."""
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def read_head(sock: socket.socket) -> bytes:
    """Read the head of an HTTP request or answer and no byte more, or less if the other side hangs up before."""
    head = b""
    while not head.endswith(END_OF_HEAD) and (byte := sock.recv(1)):
        head += byte
    return head


def read_all(sock: socket.socket) -> bytes:
    """Read until the other side hangs up."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def begins(sock: socket.socket, expected: bytes) -> bool:
    """Read as many bytes as are expected, and return whether they are these."""
    return read_exactly(sock, len(expected)) == expected
