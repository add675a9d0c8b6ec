"""Cuts the test process off from the developer: terminal, signals, limits, keyring, home and environment.

A test starts programs that ask the person at the terminal, that write to the user's log, and that inherit signal dispositions. With `pytest -n` each
worker is isolated, and the controller stays with the terminal: Ctrl-C ends the run as usual. Without workers, pytest itself is isolated.
"""

import fcntl
import os
import resource
import shutil
import signal
import tempfile
import termios

from corral.containment.kernel.capabilities import join_empty_keyring

# All other variables are dropped: those of coding agents, git, pagers, editors and colours, and the user's XDG directories.
KEPT_VARIABLES = ("PATH", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR", "VIRTUAL_ENV", "CI")
# Variables of pytest, corral's switches for its tests, and variables that a package manager needs to reach its index.
KEPT_PREFIXES = ("PYTEST_", "CORRAL_", "PIP_", "UV_", "NPM_CONFIG_", "SSL_CERT_", "PYTHON")
# A browser and a thousand connections need more than the usual 1,024.
WANTED_DESCRIPTORS = 16_384


def isolate(*, is_worker: bool) -> str:
    """Isolate this process, and return the home directory made for it."""
    leave_terminal(is_worker=is_worker)
    reset_signals()
    os.umask(0o022)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    # After `su -` the session keyring is revoked, and tests cannot add keys to it.
    join_empty_keyring()
    return set_environment()


def leave_terminal(*, is_worker: bool) -> None:
    """Give up the controlling terminal, so that no test can ask the developer."""
    if is_worker:
        os.setsid()
        return
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return
    # Not setsid: Ctrl-C at the terminal must still reach this process.
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


def reset_signals() -> None:
    """Undo what `nohup`, a background job or a CI runner left ignored or blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_environment() -> str:
    """Keep only the variables that the tests need, and set an empty home."""
    for name in set(os.environ) - set(KEPT_VARIABLES):
        if not name.startswith(KEPT_PREFIXES):
            del os.environ[name]
    # Not in /tmp, which the guard treats as scratch.
    home = os.path.realpath(tempfile.mkdtemp(prefix="corral-home-", dir="/var/tmp"))
    os.environ |= {"HOME": home, "TERM": "xterm", "LANG": "C.UTF-8"}
    for kind, folder in (
        ("CONFIG", ".config"),
        ("CACHE", ".cache"),
        ("STATE", ".local/state"),
        ("DATA", ".local/share"),
    ):
        os.environ[f"XDG_{kind}_HOME"] = os.path.join(home, folder)
        os.makedirs(os.environ[f"XDG_{kind}_HOME"])
    return home


def remove_home(home: str) -> None:
    """Remove the home directory. A test may have left directories in it without permissions."""
    shutil.rmtree(home, onerror=_open_and_retry)


def _open_and_retry(_: object, path: str, __: object) -> None:
    os.chmod(os.path.dirname(path), 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
