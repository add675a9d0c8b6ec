"""An IntEnum that is cheap to import: importing `enum` takes longer than the hook may take in total."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum
    from typing import Any

    class FastIntEnum(IntEnum):
        """A base class whose integer class attributes are its members. str() gives the name in lower case."""

else:

    class _Members(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _Members:
            integers = {key: value for key, value in body.items() if type(value) is int and not key.startswith("_")}
            made = super().__new__(cls, name, bases, {key: v for key, v in body.items() if key not in integers})
            made.__members__ = {}
            for key, integer in integers.items():
                member = int.__new__(made, integer)
                member.name, member.value = key, integer
                made.__members__[key] = member
                type.__setattr__(made, key, member)
            return made

        def __call__(cls, value: object) -> Any:
            for member in cls:
                if member == value:
                    return member
            raise ValueError(f"{value!r} is not a valid {cls.__name__}")

        def __getitem__(cls, name: str) -> Any:
            return cls.__members__[name]

        def __iter__(cls) -> Iterator[Any]:
            return iter(cls.__members__.values())

        def __len__(cls) -> int:
            return len(cls.__members__)

        def __setattr__(cls, name: str, value: object) -> None:
            if name in cls.__dict__.get("__members__", ()):
                raise AttributeError(f"cannot reassign member {name!r}")
            type.__setattr__(cls, name, value)

    class FastIntEnum(int, metaclass=_Members):
        """A base class whose integer class attributes are its members. str() gives the name in lower case."""

        def __str__(self) -> str:
            return self.name.lower()

        def __repr__(self) -> str:
            return f"<{type(self).__name__}.{self.name}: {self.value}>"

        def __format__(self, spec: str) -> str:
            return format(str(self), spec)

        def __reduce__(self) -> tuple[Any, tuple[int]]:
            return type(self), (self.value,)

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: object) -> Any:
            return self
