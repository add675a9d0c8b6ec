"""Forks a process as the first of a new pid namespace."""

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

from corral.containment import layers, protocol
from corral.containment.kernel import namespaces, process_tree
from corral.containment.kernel.layer import FORK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from corral.containment.plan import WardenPlan


def fork_in_pid_namespace(run: Callable[[], NoReturn], warden_plan: WardenPlan) -> tuple[int, int]:
    """Fork the first process of a new pid namespace, which runs `run`. Return its pid and pidfd."""
    # By way of a child, since a process can unshare its children's pid namespace only once.
    receiver, sender = socketpair(AF_UNIX, SOCK_SEQPACKET)
    between = os.fork()
    if between == 0:
        _fork_in_new_namespace(sender, run, warden_plan)
    sender.close()
    try:
        message, descriptors = protocol.receive(receiver)
        os.waitpid(between, 0)
    finally:
        receiver.close()
    number = protocol.unpack_count(message, protocol.NEW)
    if not descriptors:
        raise OSError(number, os.strerror(number))
    return number, descriptors[0]


def _fork_in_new_namespace(sender: socket, run: Callable[[], NoReturn], warden_plan: WardenPlan) -> NoReturn:
    """Enter a pid namespace, fork its first process, send its pid and pidfd, and exit.

    Where RLIMIT_NPROC limits processes, it also enters a user namespace: the kernel counts by user and namespace.
    """
    try:
        if warden_plan.limits.counts_by_user:
            process_tree.show()
            namespaces.enter_user()
        for layer in layers.of_stage(FORK, warden_plan):
            layer.enter(warden_plan)
        pid = os.fork()
        if pid == 0:
            sender.close()
            run()
        protocol.send(sender, protocol.COUNT.pack(protocol.NEW, pid), (os.pidfd_open(pid),))
    except OSError as error:
        protocol.send(sender, protocol.COUNT.pack(protocol.NEW, error.errno or 0))
    finally:
        os._exit(0)
