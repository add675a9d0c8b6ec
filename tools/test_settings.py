"""Runs `make test` in the settings that developers use, each in a fresh clone, and prints one line for each.

    python tools/test_settings.py                          all settings, the whole suite
    python tools/test_settings.py --only terminal busy     some settings
    python tools/test_settings.py -- tests/test_api.py     a part of the suite, in all settings

As root it makes a throwaway user for the settings of an ordinary user, and removes that user afterwards. It needs git, make and, as root, useradd and su.
"""

import argparse
import ctypes
import os
import pty
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SUMMARY = re.compile(r"^=* ?(\d+ (?:passed|failed|error|skipped|deselected).*? in [0-9.]+s.*?) ?=*$", re.MULTILINE)
BUSY_LOOPS = 4
OTHER_HOSTS = ("claude", "codex", "gemini", "opencode", "copilot", "cursor-agent")
KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING, REVOKE, SESSION_KEYRING = 1, 3, -3


@dataclass(frozen=True)
class Setting:
    """A way to run the suite. `place` is the directory of the clone; `{tmp}` and `{home}` stand for the directories of that name."""

    name: str
    means: str
    place: str
    run: Callable[[str, Path, "Account"], int]
    is_root: bool = False
    has_hooks: bool = False
    is_busy: bool = False


@dataclass(frozen=True)
class Account:
    """The user who runs the suite, and an interpreter that this user can start."""

    name: str
    uid: int
    gid: int
    home: Path
    python: str

    def become(self) -> None:
        """Drop to this user, in a child process."""
        if os.geteuid() == 0 and self.uid != 0:
            os.initgroups(self.name, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)

    def environment(self) -> dict[str, str]:
        """Return the environment of this user, with the package manager's settings of the present one."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_CERT_")) or name in ("LANG", "PATH")
        }
        return {
            **kept,
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
        }


@contextmanager
def ended_with_us(leader: int) -> Iterator[None]:
    """Kill the session of a run if this tool is interrupted."""
    try:
        yield
    except BaseException:
        subprocess.run(["pkill", "-KILL", "-s", str(leader)], check=False)
        raise


def at_terminal(script: str, log: Path, account: Account) -> int:
    """Run in the foreground of a new terminal that gets no input."""
    pid, terminal = pty.fork()
    if pid == 0:
        account.become()
        os.execve("/bin/bash", ["bash", "-c", script], account.environment())
    with log.open("wb") as file, ended_with_us(pid):
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            file.write(data.replace(b"\r\n", b"\n"))
            file.flush()
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def without_terminal(script: str, log: Path, account: Account) -> int:
    """Run in a session without a terminal, as CI does."""
    return _to_log(["bash", "-c", script], log, account)


def under_nohup(script: str, log: Path, account: Account) -> int:
    """Run as `nohup make test &` does: SIGHUP and SIGINT are ignored from the start."""
    return _to_log(["bash", "-c", script], log, account, ignored=(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT))


def after_su(script: str, log: Path, account: Account) -> int:
    """Run in a login shell of `su -`, with a revoked session keyring and at most 1,024 descriptors."""
    limited = f"ulimit -Sn 1024; {script}"
    words = ["su", "-", account.name, "-s", "/bin/bash", "-c", limited]
    return _to_log(words, log, None, prepare=revoke_keyring)


def _to_log(
    words: Sequence[str],
    log: Path,
    account: Account | None,
    ignored: Sequence[signal.Signals] = (),
    prepare: Callable[[], None] = lambda: None,
) -> int:
    def begin() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        prepare()
        if account is not None:
            account.become()

    with log.open("wb") as file:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=None if account is None else account.environment(),
            start_new_session=True,
            preexec_fn=begin,  # noqa: PLW1509  this tool has one thread
        )
        with ended_with_us(process.pid):
            return process.wait()


def revoke_keyring() -> None:
    """Give this process a revoked session keyring, as it has after a login session ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = KEYCTL[os.uname().machine]
    libc.syscall(number, JOIN_SESSION_KEYRING, None, 0, 0, 0)
    libc.syscall(number, REVOKE, SESSION_KEYRING, 0, 0, 0)


SETTINGS = (
    Setting("terminal", "root, path with a space, foreground of a terminal", "{tmp}/a path with spaces/clone", at_terminal, is_root=True),
    Setting("busy", "root, below /tmp, no terminal, beside four busy loops", "{tmp}/n", without_terminal, is_root=True, is_busy=True),
    Setting("nohup", "ordinary user, below /tmp, `nohup … &`", "{tmp}/clone", under_nohup),
    Setting("su", "ordinary user, below home, after `su -`: revoked keyring, 1,024 descriptors, other hosts on PATH, hooks in the home",
            "{home}/corral-setting/src", after_su, has_hooks=True),
)  # fmt: skip


@contextmanager
def throwaway_user() -> Iterator[Account]:
    """Make an ordinary user with a home directory, and remove both afterwards."""
    name = f"corral-{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True)
    try:
        entry = pwd.getpwnam(name)
        yield Account(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), python_for_all(entry))
    finally:
        subprocess.run(["pkill", "-KILL", "-u", name], check=False)
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)


def python_for_all(entry: pwd.struct_passwd) -> str:
    """Return a Python of at least 3.11, with venv, that this user can start."""
    candidates: list[str] = [sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"]  # type: ignore[attr-defined]
    for path in candidates:
        probe = [path, "-c", "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"]
        try:
            done = subprocess.run(
                probe, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], env={}, capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return path
    raise SystemExit(
        f"no Python of 3.11 or newer with venv that an ordinary user can start among: {', '.join(candidates)}"
    )


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep the processors busy with this many endless loops."""
    loops = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def install_hooks(clone: Path, account: Account) -> str:
    """Install corral's hooks in the user's home, and fake agent hosts of another version. Return the directory of the fake hosts."""
    programs = account.home / "other-hosts"
    programs.mkdir()
    for name in OTHER_HOSTS:
        (programs / name).write_text("#!/bin/sh\necho 0.0.1\nexit 3\n")
        (programs / name).chmod(0o755)
    # A copy outside the clone: corral refuses to install a hook that an agent in the clone could change.
    place = shlex.quote(str(account.home / "installed"))
    script = f"{shlex.quote(account.python)} -m venv {place} && {place}/bin/pip install -q {shlex.quote(str(clone))}"
    script += f" && for host in claude codex gemini cursor; do {place}/bin/corral install $host --yes >/dev/null || exit 1; done"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=account.home,
        env=account.environment(),
        preexec_fn=account.become,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the hooks could not be installed: {done.stdout}{done.stderr}")
    return str(programs)


def recorded(home: Path, clone: Path) -> dict[str, tuple[int, int]]:
    """Return the size and modification time of each of the user's files, except the clone and the caches of package managers."""
    found = {}
    for folder, names, files in os.walk(home):
        names[:] = [
            name
            for name in names
            if Path(folder, name) != clone and name not in ("pip", "uv", "__pycache__", "other-hosts", "installed")
        ]
        for name in files:
            state = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
    return found


def try_setting(setting: Setting, account: Account, arguments: Sequence[str], logs: Path) -> bool:
    """Run the suite in one setting and print a line. Return True if it passed and did not change the user's files."""
    temporary = Path(tempfile.mkdtemp(prefix="corral-setting-", dir="/tmp"))
    temporary.chmod(0o755)
    clone = Path(setting.place.format(tmp=temporary, home=account.home))
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(clone)], check=True)
    if account.uid != os.geteuid():
        for path in (account.home, temporary):
            subprocess.run(["chown", "-R", f"{account.uid}:{account.gid}", str(path)], check=True)
    log = logs / f"{setting.name}.log"
    other_path = ""
    if setting.has_hooks:
        other_path = f"export PATH={shlex.quote(install_hooks(clone, account))}:$PATH; "
    before = recorded(account.home, clone) if not setting.is_root else {}
    words = ["make", "test", f"PYTHON={account.python}", f"ARGS={shlex.join(arguments)}"]
    script = f"{other_path}cd {shlex.quote(str(clone))} && {shlex.join(words)}"
    started = time.monotonic()
    with busy_loops(BUSY_LOOPS if setting.is_busy else 0):
        status = setting.run(script, log, account)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    found = SUMMARY.findall(re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")))
    touched = (
        sorted(path for path, state in recorded(account.home, clone).items() if before.get(path) != state)
        if not setting.is_root
        else []
    )
    is_well = status == 0 and not touched
    print(f"{'ok  ' if is_well else 'FAIL'} {setting.name:9} {setting.means}")
    print(
        f"     {found[-1] if found else 'no summary'}; make test took {minutes} min {seconds} s; exit {status}; {log}"
    )
    for name in touched:
        print(f"     the user's file changed: {name}")
    sys.stdout.flush()
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(clone, ignore_errors=True)
    return is_well


def main() -> int:
    """Run the suite in each chosen setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[setting.name for setting in SETTINGS], help="names of settings")
    parser.add_argument("--logs", type=Path, help="a directory for the logs (a temporary one)")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if dirty := subprocess.run(
        ["git", "status", "--porcelain"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout:
        print(f"these changes are not tested, because only commits are cloned:\n{dirty}", file=sys.stderr)
    logs = chosen.logs or Path(tempfile.mkdtemp(prefix="corral-settings-"))
    logs.mkdir(parents=True, exist_ok=True)
    is_root = os.geteuid() == 0
    entry = pwd.getpwuid(os.geteuid())
    own = Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), sys._base_executable)  # type: ignore[attr-defined]
    results = []
    for setting in SETTINGS:
        if chosen.only and setting.name not in chosen.only:
            continue
        # Hooks are installed in a throwaway user's home only, never in the home of the user who runs this tool.
        if (setting.is_root or setting.has_hooks) and not is_root:
            print(f"left out: {setting.name} needs root")
            continue
        with nullcontext(own) if setting.is_root or not is_root else throwaway_user() as account:
            results.append(try_setting(setting, account, chosen.pytest, logs))
    print(f"{sum(results)} of {len(results)} settings passed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
