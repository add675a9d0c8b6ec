"""Defines `Layer`: all that corral knows about one containment layer.

A module of this package lists its layers in `LAYERS`. `corral.containment.layers` collects them, and everything else iterates
over that table: the probe, the downgrade, bubblewrap's arguments, `corral doctor`, `corral selftest` and the documentation.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from corral.containment.plan import WardenPlan

# The stages in which layers are entered. The keeper enters the namespaces that all wardens share. A process between keeper and
# warden enters those that begin with the next child. The warden enters the rest: first namespaces and the tree; then rules on
# paths, since a rule binds to what lies at a path when it is made; then it gives up rights; the filter on system calls comes
# last, because it refuses the calls that the other layers need.
KEEPER, FORK, TREE, RULES, RIGHTS, FILTER = range(6)


@frozen
class Remedy(Record):
    """Tells `corral doctor` why the kernel can refuse a layer, and what the user can do about it."""

    causes: tuple[str, ...] = ()  # the rows of doctor's table that can apply
    kernel_option: str = ""  # that the kernel must be built with
    since: str = ""  # the first kernel version that has the layer
    limit: str = ""  # the sysctl that limits the number of these namespaces
    advice: tuple[tuple[int, str, str], ...] = ()  # errno, explanation, and a command; `{name}` is a fact of doctor's


@frozen
class Attack(Record):
    """An attempt of `corral selftest`: the body of a function that returns something true if the attack succeeded."""

    group: str
    name: str
    program: str
    also: tuple[str, ...] = ()  # other layers that stop it
    needs: tuple[str, ...] = ()  # conditions without which it shows nothing


@frozen
class Layer(Record):
    """A containment layer: what it guarantees, and how corral enters, tests and explains it."""

    name: str
    order: int  # its position in reports
    keeps: str  # what it guarantees
    without: str  # what a command can do where it is missing
    needs: tuple[str, ...]  # the layers that it is built on
    probe: Callable[[str], None] | None  # enters it in a child, given a directory to use; None if every kernel has it
    stage: int
    enter: Callable[[WardenPlan], None]
    bubblewrap: tuple[str, ...] | str  # the options that make bubblewrap enter it, or how else it is entered there
    remedy: Remedy
    self_test: Attack | str  # an attack that it stops, or the reason for having none
    namespace: str = ""  # its name in /proc/self/ns
    is_supported: Callable[[], bool] = lambda: True  # whether this kernel has it, where bubblewrap enters it
    is_evident: Callable[[Mapping[bytes, bytes]], bool] | None = None  # whether /proc/self/status or the tree shows it
    probe_forks: bool = False  # whether the probe needs a process of its own, because it changes the root
    enters_in_bubblewrap: bool = False  # whether a warden that bubblewrap started enters it itself
    confines: bool = True  # whether it protects a file or a process of the user
    unwanted_with_network: bool = False  # whether network "on" does without it
