"""The public class `Sandbox`: check a call, run it, start it, run many, begin a transaction, read and write files.

Read this first. Nothing is started unless the guard allows it. A command that fails or is refused is a result, never an
exception.
"""

from __future__ import annotations

import os

from corral.guard.cache import VerdictCache
from corral.model.errors import ContainmentError
from corral.policy.config import SandboxConfig
from corral.runtime import files
from corral.runtime.run_options import RunOptions, call_of
from corral.runtime.runner import open_runner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from corral.containment.network.hold_answers import OnHold
    from corral.model.call import Verdict
    from corral.model.grant import Grant
    from corral.model.result import SandboxResult
    from corral.policy.config import Output
    from corral.runtime.batch import Batch
    from corral.runtime.driver import OnResult
    from corral.runtime.executor import Executor
    from corral.runtime.handle import Handle
    from corral.runtime.observers import Observer
    from corral.runtime.shared_state import OnAsk, Opened
    from corral.runtime.shell.session import Session
    from corral.runtime.waiters import OnOutput
    from corral.transactions.apply import Applied
    from corral.transactions.transaction import Transaction
    from corral.transactions.undo_store import Entry

    Argv = Sequence[object] | str | os.PathLike[str]
    Path = str | os.PathLike[str]


def _open_grants(config: SandboxConfig, grants: tuple[Grant, ...]) -> Opened:
    from corral.broker.openings import open_grants  # noqa: PLC0415  most calls need no grant

    return open_grants(config, grants)


class Sandbox:
    """Runs commands under one config. Any thread may use it. After fork() the child gets its own keeper and wardens.

    `on_ask` decides calls that the policy asks about: only True runs them. `on_result` gets every result.
    `on_hold` gets `host:port` of a destination that is not granted, while a command's connection to it waits: only True serves it.
    It is called in a thread of its own, and only if `config.asking.hold_seconds` is not 0.
    `observers` see every call from before it is judged until its result.
    """

    def __init_subclass__(cls) -> None:
        """Refuse a subclass that overrides only some of the methods that run calls: its checks would miss the others."""
        ways = ("run", "arun", "start", "astart", "transaction", "session")
        inherited = [name for name in ways if getattr(cls, name) is getattr(Sandbox, name)]
        if 0 < len(inherited) < len(ways):
            raise TypeError(
                f"{cls.__name__} must override {', '.join(inherited)} too, or use observers or GatedSandbox"
            )

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        on_ask: OnAsk | None = None,
        on_result: OnResult | None = None,
        observers: Iterable[Observer] = (),
        on_hold: OnHold | None = None,
    ) -> None:
        if config is not None and not isinstance(config, SandboxConfig):
            raise TypeError(f"config must be a SandboxConfig, not {type(config).__name__}")
        self._config = SandboxConfig() if config is None else config
        self._runner = open_runner(
            self.config,
            on_ask=on_ask,
            on_result=on_result,
            observers=observers,
            open_grants=_open_grants,
            on_hold=on_hold,
            hold_seconds=self.config.asking.hold_seconds,
        )
        self._state = self._runner.state
        self._holding = self._state.containment
        self._pool = self._state.pool
        self._in_transactions: tuple[SandboxConfig, VerdictCache] | None = None

    @property
    def config(self) -> SandboxConfig:
        """The policy of this sandbox. It cannot be replaced: make another sandbox."""
        return self._config

    @property
    def on_ask(self) -> OnAsk | None:
        """The callback that decides calls which the policy asks about."""
        return self._state.on_ask

    @on_ask.setter
    def on_ask(self, callback: OnAsk | None) -> None:
        self._state.on_ask = callback

    @property
    def on_result(self) -> OnResult | None:
        """The callback that gets every result."""
        return self._state.on_result

    @on_result.setter
    def on_result(self, callback: OnResult | None) -> None:
        self._state.on_result = callback

    @property
    def observers(self) -> list[Observer]:
        """The observers of every call. The list may be changed at any time."""
        return self._state.observers

    def check(
        self, argv: Argv, *, shell: bool = False, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Verdict:
        """Judge a call without running it."""
        return self._runner.check(call_of(argv, shell, cwd, env))

    def run(
        self,
        argv: Argv,
        *,
        shell: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> SandboxResult:
        """Run a call to its end. `on_output` gets output as it arrives: the stream's name and bytes."""
        return self._runner.run(RunOptions(call_of(argv, shell, cwd, env), stdin, timeout_seconds, on_output))

    async def arun(
        self,
        argv: Argv,
        *,
        shell: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> SandboxResult:
        """Run a call to its end in the running event loop. Cancelling kills everything it started."""
        return await self._runner.arun(RunOptions(call_of(argv, shell, cwd, env), stdin, timeout_seconds, on_output))

    def start(
        self,
        argv: Argv,
        *,
        shell: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        open_stdin: bool = False,
        inherit_stdin: bool = False,
        inherit_stdio: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        on_output: OnOutput | None = None,
    ) -> Handle:
        """Start a call and return its handle. The handle of a refused call has its result already.

        `open_stdin` lets the handle write input. `inherit_stdin` lets the command read this process's stdin.
        `inherit_stdio` gives the command all three streams of this process: nothing is captured, and the silence limit is off.
        `pty` gives the command a terminal of its own. The handle writes to it and reads all output from it as stdout.
        """
        call = call_of(argv, shell, cwd, env)
        streams = (open_stdin, inherit_stdin, inherit_stdio, pty, rows, columns)
        return self._runner.start(RunOptions(call, stdin, timeout_seconds, on_output, *streams))

    async def astart(
        self,
        argv: Argv,
        *,
        shell: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        open_stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        on_output: OnOutput | None = None,
    ) -> Handle:
        """Start a call as `start` does, without blocking the running event loop while a warden is made."""
        call = call_of(argv, shell, cwd, env)
        streams = (open_stdin, False, False, pty, rows, columns)
        return await self._runner.astart(RunOptions(call, stdin, timeout_seconds, on_output, *streams))

    def session(self) -> Session:
        """Return a session: a bash whose directory, variables, functions, options and jobs last between its calls."""
        from corral.runtime.shell.session import Session  # noqa: PLC0415  it loads threading, which a single call does not need

        return Session(self._runner)

    def map(
        self,
        calls: Iterable[object],
        *,
        workers: int | None = None,
        ordered: bool = True,
        idempotent: bool = False,
        engine: str | Executor = "local",
    ) -> Batch:
        """Run many calls, several at a time, and iterate over their results: in order, or as they are done.

        A call is a list of words, or a mapping with `argv` or `shell` and the options of `run`. Closing the iterator kills
        the running commands.
        """
        from corral.runtime.batch import Batch, LocalWork  # noqa: PLC0415  it loads threading, which a single call does not need

        work = LocalWork(self.config, self.start)
        return Batch(
            work,
            calls,
            workers=workers,
            ordered=ordered,
            idempotent=idempotent,
            engine=engine,
            on_result=self.on_result,
        )

    def transaction(self) -> Transaction:
        """Begin a transaction: its calls change an overlay of the project. `apply` writes the changes; without it they are dropped."""
        from corral.transactions.spares import TransactionFactory  # noqa: PLC0415  most sandboxes have no transaction
        from corral.transactions.transaction import Transaction, transaction_config  # noqa: PLC0415  as above

        if self._in_transactions is None:
            config = transaction_config(self.config)
            self._in_transactions = config, VerdictCache(config)
        error = self._holding.project_error()
        if error:
            raise ContainmentError(error)
        with self._holding.renewal:
            spares = self._state.spares
            if not isinstance(spares, TransactionFactory) or not spares.is_current():
                self._state.spares = spares = TransactionFactory(self._holding, self._pool)
        return Transaction(self._runner, spares, *self._in_transactions)

    def undo(self, id: str = "") -> Applied:  # noqa: A002  the name in history and results
        """Undo the transaction that was applied last, or the one whose id begins with `id`."""
        from corral.transactions.undo import undo  # noqa: PLC0415  as above

        return undo(self.config.project_root, os.environ, id)

    def history(self) -> list[Entry]:
        """Return the transactions that were applied to the project, the latest first."""
        from corral.transactions.undo import history  # noqa: PLC0415  as above

        return history(self.config.project_root, os.environ)

    def read_bytes(self, path: Path) -> bytes:
        """Return a file's bytes. A path is relative to the project; PermissionError when a command could not read it."""
        return files.read_bytes(os.fspath(path), self.config, self._state.scratch_for(os.fspath(path)))

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Replace a file's bytes. A path is relative to the project; PermissionError when a command could not write it."""
        files.write_bytes(os.fspath(path), data, self.config, self._state.scratch_for(os.fspath(path)))

    def use_output(self, output: Output) -> None:
        """Replace the output settings for all calls from now on."""
        self._config = self._config.replace(output=output)
        self._runner.context = self._runner.context.replace(config=self.config)

    def close(self) -> None:
        """End everything that was started and wait until it is gone. A closed sandbox checks calls but runs none."""
        self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
