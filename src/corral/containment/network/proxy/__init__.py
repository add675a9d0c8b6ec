"""The proxy through which commands reach granted destinations by name. It logs every request.

The keeper starts it as a process in the host's network. The sandbox's network namespace has no route: its only way out is a
listening socket on its own loopback, on which this process accepts.
"""

from _struct import Struct

HOST = "127.0.0.1"
PORT = 61080  # above the kernel's range of ephemeral ports
RESOLVER = (HOST, 53)  # of the sandbox; programs without a resolv.conf ask there too
OPEN = Struct("=HH")  # from the proxy to the keeper and back: the number of an address, and a port
