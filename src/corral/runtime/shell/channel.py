"""The conversation with a shell that lasts: the text that its bash runs first, the records sent to it, and its answers.

bash gets its calls and sends exit codes over a socket of its own, never over a stream of the commands. While a call runs, the socket
only has a descriptor that exec() closes, so no child has it, and a socket cannot be opened through /proc. The kernel names the sender
of every answer, and an answer must repeat a nonce that bash reads only after the call has ended.
"""

from __future__ import annotations

from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CTRUNC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SO_PASSCRED,
    SOCK_STREAM,
    SOL_SOCKET,
    socketpair,
)
from _struct import Struct

_SCM_CREDENTIALS = 2
_CREDENTIALS = Struct("iII")  # pid, uid, gid of the sender, as this process sees them
MAX_ANSWER_BYTES = 4096
ENDINGS = 200  # how often an interrupt or a stray `break` may end the loop below before the shell itself ends
ARGV = ("bash", "--noprofile", "--norc", "--noediting", "-i")
# An interrupt ends an interactive bash's command but not bash. Its prompts and its notes about the missing terminal go to
# /dev/null: only a call's own commands write to the real stderr, which is descriptor 4. The rest undoes what else is
# different in an interactive bash, because the guard judges each call as text for `bash -c`.
_SET_UP = "exec 4>&2 2>/dev/null; PS1= PS2=; set +o history +H; shopt -u expand_aliases checkwinsize; unset HISTFILE\n"
# Every record is handled by itself, so the next bash loop can go on where an interrupt ended this one.
_LOOP = (
    "while IFS= builtin read -r -d '' -u 3 __corral; do case $__corral in "
    # The text is dropped before it runs: no record may run twice, even if `read` fails without saying so.
    "T*) __corral_text=${__corral:1} __corral= __corral_status=x; "
    'builtin eval "$__corral_text" </dev/null 2>&4 3>&- 4>&-; __corral_status=$?;; '
    'N*) builtin printf \'%s %s\\n\' "${__corral:1}" "$__corral_status" >&3; __corral=;; '
    "esac; done\n"
)
SCRIPT = (_SET_UP + ENDINGS * _LOOP).encode()
STOPPED = "x"  # in place of an exit code: the call's text was not run to its end
_TEXT, _NONCE = b"T", b"N"


def record_of(text: str, nonce: str, last_exit_code: int = 0) -> bytes:
    """Return the records that let bash run a text and then answer. `$?` is the last call's exit code, as in any shell."""
    # In the same line, so that line numbers are right. A subshell is the only way to set `$?` to any value, and as a part of a
    # list that is not its last one it does not end the shell under `set -e`.
    before = f"(exit {last_exit_code & 0xFF}) && :; " if last_exit_code else ""
    return _TEXT + f"{before}{text}".encode("utf-8", "surrogateescape") + b"\0" + question(nonce)


def question(nonce: str) -> bytes:
    """Return the record that lets bash answer."""
    return _NONCE + nonce.encode() + b"\0"


class Channel:
    """The host's end of the socket."""

    def __init__(self) -> None:
        self.sock, self.theirs = socketpair(AF_UNIX, SOCK_STREAM)
        self.sock.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        self.pid = 0  # of bash, as the kernel named it with its first answer
        self._unread = b""
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        """Queue records, and send as much as the socket takes."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket takes."""
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent, MSG_DONTWAIT | MSG_NOSIGNAL)]
        except BlockingIOError:
            return
        except OSError:
            # bash is gone, which `receive` reports.
            self._unsent.clear()

    @property
    def wants_to_send(self) -> bool:
        """True if the queue is not empty."""
        return bool(self._unsent)

    def receive(self) -> list[tuple[str, str]] | None:
        """Return the new answers as nonce and status. None when bash has closed its end."""
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(MAX_ANSWER_BYTES, CMSG_SPACE(_CREDENTIALS.size), MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        # Descriptors that a command sends do not fit, so the kernel drops them and sets the flag.
        senders = [
            _CREDENTIALS.unpack(value)[0]
            for level, kind, value in ancillary
            if level == SOL_SOCKET and kind == _SCM_CREDENTIALS and len(value) == _CREDENTIALS.size
        ]
        if flags & MSG_CTRUNC or len(senders) != 1 or senders[0] != (self.pid or senders[0]):
            return []
        self.pid = senders[0]
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._unread = self._unread[-MAX_ANSWER_BYTES:]
        answers = [line.decode("ascii", "replace").partition(" ") for line in lines]
        return [(nonce, status) for nonce, _, status in answers]

    def close_theirs(self) -> None:
        """Close the host's copy of bash's end."""
        self.theirs.close()

    def close(self) -> None:
        """Close both ends."""
        self.theirs.close()
        self.sock.close()
