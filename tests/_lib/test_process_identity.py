"""ProcessIdentity is current in its own process and not in a fork of it."""

import os
import warnings

from corral._lib.process_identity import ProcessIdentity


def test_identity_is_not_current_in_a_fork() -> None:
    identity = ProcessIdentity()
    assert identity.is_current()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(identity.is_current())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert identity.is_current()
