"""The errors that corral raises. A failure of a command, or wrong arguments of a command, is never one of them."""


class CorralError(Exception):
    """Base of corral's errors."""


class PolicyError(CorralError, ValueError):
    """A config or policy file is invalid; the message names the field."""


class ContainmentError(CorralError, RuntimeError):
    """The kernel lacks a layer that the profile needs, or the process that starts commands is gone."""


class AuditError(CorralError, RuntimeError):
    """The audit log cannot be written; the message names the file and the remedy."""


class TransactionError(CorralError, RuntimeError):
    """A transaction has ended, another one is active, or a file changed in the meantime."""
