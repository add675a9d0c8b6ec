"""The network by name: a proxy outside the namespace that lets through what is granted, and writes down what it was asked for.

It is a process of the keeper's, in the host's network. The sandbox has no route; what it has is a listening socket of its own loopback
that this process accepts on.
"""

HOST = "127.0.0.1"
PORT = 61080  # above the ports that the kernel gives out by itself
