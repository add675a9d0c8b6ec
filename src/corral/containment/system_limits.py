"""Explains errors of the kernel that mean that this process, its user or the machine has reached a limit."""

from __future__ import annotations

from errno import EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC

from corral.model.errors import ContainmentError

_REMEDIES = {
    EMFILE: "this process may open no more than {files} files. Close sandboxes that are not used, or raise `ulimit -n`",
    ENFILE: "the machine has no free file descriptor. Close sandboxes that are not used, or raise fs.file-max",
    EAGAIN: "the user may start no more processes. Close sandboxes that are not used, or raise `ulimit -u` or the limit of the control group",
    ENOMEM: "the machine has no free memory. Close sandboxes that are not used",
    ENOSPC: "the disk is full, or the user may make no more namespaces (user.max_*_namespaces) or inotify watches. Close sandboxes that are not used",
}


def explained(error: OSError, what: str) -> ContainmentError:
    """Return the error for the user of the library: what could not be done, and the remedy if a limit was reached."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None:
        return ContainmentError(f"{what}: {error.strerror or error}")
    import resource  # noqa: PLC0415  few processes reach a limit

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ContainmentError(f"{what}: {error.strerror}. Here {remedy.format(files=files)}")
