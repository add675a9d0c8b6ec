"""Frozen dataclasses that are cheap to import: importing `dataclasses` takes longer than the hook may take in total.

A record has equality, hash, repr and pickling by its annotated fields.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, TypeVar, dataclass_transform

    T = TypeVar("T")


_FEW = 3  # instances of a class; compiling its constructor takes longer than building that many by the generic one


class _RecordType(type):
    """Turns the annotated fields of a class into slots, and gives it a constructor."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordType:
        names = tuple(body.get("__annotations__", ())) if bases else ()
        if not names:
            return super().__new__(cls, name, bases, body)
        defaults = {field: body.pop(field) for field in names if field in body}
        new = super().__new__(cls, name, bases, {**body, "__slots__": names, "_fields": names})
        _give_constructor(new, names, defaults, validates="_validate" in body)
        return new


class Record(metaclass=_RecordType):
    """Base class of records. The constructor calls `_validate` if the class has one."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self._fields}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**self.as_dict() | changes)

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
        if made > _FEW or not is_sound:
            # The compiled constructor raises Python's own TypeError for wrong arguments.
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
    exec("\n".join(lines), scope)  # noqa: S102  the text consists of field names, as in dataclasses
    made: Callable[..., None] = scope["__init__"]
    return made


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def frozen(cls: type[T]) -> type[T]:
        """Declare a record."""
        return cls
else:

    def frozen(cls: type) -> type:
        """Declare a record; the metaclass has built it."""
        return cls
