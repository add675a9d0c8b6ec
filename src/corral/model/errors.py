"""The ways corral itself fails. What a command or its arguments do is never one of them."""


class CorralError(Exception):
    """Base of corral's own failures."""


class PolicyError(CorralError, ValueError):
    """The owner's choices contradict themselves; the message names the field."""


class ContainmentError(CorralError, RuntimeError):
    """The kernel cannot give what the profile needs, or the process that spawns is gone."""


class AuditError(CorralError, RuntimeError):
    """What happens cannot be written to the owner's log; the message names the file and what to do."""


class TransactionError(CorralError, RuntimeError):
    """A transaction cannot do what was asked of it: it has ended, another is at work, or something changed meanwhile."""
