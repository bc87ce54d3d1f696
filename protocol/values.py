"""How values are made: messages, states, events, commands.

A value never changes. Only the type checker enforces that. A class that refuses assignments at run time takes three
times as long to make an instance of (1.3 µs instead of 0.4 µs with six attributes), and a registration makes
some fifty. ``docs/performance.md`` has the measurement.

Most values are never compared, hashed or shown. All classes share the methods that do so, since attrs would generate
and compile three for each of hundreds of classes at every start, which takes longer than all the rest of a class.

PYTEST_DONT_REWRITE
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    from functools import cache, partial
    from operator import attrgetter

    import attrs

    def value(cls=None, **options):
        """Make a class with slots whose instances compare and hash by their attributes, as ``attrs.frozen`` makes it.

        A method of the class itself is kept.
        """
        if cls is None:
            return partial(value, **options)
        for method in (__eq__, __hash__, __repr__):
            if method.__name__ not in cls.__dict__:
                setattr(cls, method.__name__, method)
        return attrs.define(cls, eq=False, repr=False, **options)

    def __eq__(self, other):  # noqa: N807 - a method of all values
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = _compared(self.__class__)
        return compared(self) == compared(other)

    def __hash__(self):  # noqa: N807 - a method of all values
        return hash((self.__class__, _hashed(self.__class__)(self)))

    def __repr__(self):  # noqa: N807 - a method of all values
        shown = [field.name for field in attrs.fields(self.__class__) if field.repr]
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @cache
    def _compared(cls):
        return _getter([field.name for field in attrs.fields(cls) if field.eq])

    @cache
    def _hashed(cls):
        fields = attrs.fields(cls)
        return _getter([field.name for field in fields if (field.eq if field.hash is None else field.hash)])

    def _getter(names):
        return attrgetter(*names) if names else lambda _: ()


__all__ = ["value"]
