"""Frozen records, because importing dataclasses costs more than a whole hook call may.

A record is its annotated fields: built by keyword or position, never assigned again; equality, hash, repr and pickling.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, TypeVar, dataclass_transform

    T = TypeVar("T")


FEW = 3  # records of a class; a constructor of its own takes longer to make than that many by the general way


class _Kind(type):
    """Makes the fields of a record its slots."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _Kind:
        names = tuple(body.get("__annotations__", ())) if bases else ()
        if not names:
            return super().__new__(cls, name, bases, body)
        defaults = {field: body.pop(field) for field in names if field in body}
        new = super().__new__(cls, name, bases, {**body, "__slots__": names, "_fields": names})
        _give_constructor(new, names, defaults, validates="_validate" in body)
        return new


class Record(metaclass=_Kind):
    """What every record can do; its kind adds slots and the constructor, which calls `_validate` if there is one."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self._fields)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _revive, (type(self), tuple(getattr(self, name) for name in self._fields))


def _revive(cls: Callable[..., object], values: tuple[object, ...]) -> object:
    return cls(*values)


def _give_constructor(new: type[Any], names: tuple[str, ...], defaults: dict[str, Any], *, validates: bool) -> None:
    made = 0

    def build(self: Any, *values: object, **named: object) -> None:
        nonlocal made
        made += 1
        rest = names[len(values) :]
        is_sound = len(values) <= len(names) and named.keys() <= set(rest) and {*rest} <= {*named, *defaults}
        if made > FEW or not is_sound:
            # What is wrong with them it says in Python's own words.
            new.__init__ = _constructor(new, names, defaults, validates=validates)
            new.__init__(self, *values, **named)
            return
        for name, value in zip(names, (*values, *(named.get(name, defaults.get(name)) for name in rest)), strict=True):
            object.__setattr__(self, name, value)
        if validates:
            self._validate()

    new.__init__ = build


def _constructor(
    cls: type[Any], names: tuple[str, ...], defaults: dict[str, Any], *, validates: bool
) -> Callable[..., None]:
    setters = {f"_set_{name}": cls.__dict__[name].__set__ for name in names}
    parameters = ", ".join(f"{name}=_default_{name}" if name in defaults else name for name in names)
    lines = [f"def __init__(self, {parameters}):", *(f"    _set_{name}(self, {name})" for name in names)]
    if validates:
        lines.append("    self._validate()")
    scope: dict[str, Any] = setters | {f"_default_{name}": value for name, value in defaults.items()}
    exec("\n".join(lines), scope)  # noqa: S102  the text is made of field names only, as dataclasses does
    made: Callable[..., None] = scope["__init__"]
    return made


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def frozen(cls: type[T]) -> type[T]:
        """Make a record of an annotated class."""
        return cls
else:

    def frozen(cls: type) -> type:
        """Say of a class that it is a record; its kind has made it one."""
        return cls
