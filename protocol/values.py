"""Decorators for classes with attributes: values, such as messages, states and events, and records.

A value never changes, but only the type checker enforces that. Refusing assignments at run time would make an instance
cost three times as much (1.3 µs instead of 0.4 µs with six attributes), and a registration makes some fifty.

Most values are never compared, hashed or shown. All classes share the methods for that, since attrs would generate and
compile three methods for each of hundreds of classes at every start, which takes longer than the rest of a class.

Most classes have no instance until the node is ready, or ever. So attrs completes a class when it is first used: when
an instance is made, or its attributes are read. Until then it has its slots and its methods.

The same holds for records, whose attributes can change.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from attrs import define as record
    from attrs import frozen as value

    def complete_classes(modules: Collection[str]) -> Iterator[str]:
        """Complete the unused classes of these modules, and yield the name of each."""

else:
    from functools import cache, cached_property, partial
    from operator import attrgetter
    from typing import Generic

    import attrs

    #: For each unused class the function that completes it.
    _NOT_USED = {}
    _Field = type(attrs.field())
    #: The attributes that attrs adds to a class besides its methods, and one that ``inspect.signature`` looks for.
    _ADDED = ("__attrs_attrs__", "__match_args__", "__signature__")

    def value(cls):
        """Make a class with slots whose instances compare and hash by their attributes, like ``attrs.frozen``.

        Methods that the class defines are kept.
        """
        for method in (__eq__, __hash__, __repr__):
            if method.__name__ not in cls.__dict__:
                setattr(cls, method.__name__, method)
        return _slotted(cls, attrs.setters.NO_OP) if _is_plain(cls) else attrs.define(cls, eq=False, repr=False)

    def record(cls=None, *, eq=True):
        """Make a class with slots whose instances can change, like ``attrs.define``.

        They compare by their attributes and have no hash, or with ``eq=False`` compare by identity.
        """
        if cls is None:
            return partial(record, eq=eq)
        if not _is_plain(cls):
            return attrs.define(cls, eq=eq)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = __repr__
        if eq and "__eq__" not in cls.__dict__:
            cls.__eq__, cls.__hash__ = __eq__, None
        return _slotted(cls, None)

    def _is_plain(cls):
        """Whether slots can be made without attrs: all attributes belong to instances, and all bases have slots."""
        own = cls.__dict__
        return (
            all(_has_slots(base) for base in cls.__bases__)
            and not any(hasattr(base, name) for base in cls.__bases__ for name in cls.__annotations__)
            and "__init__" not in own
            and "__slots__" not in own
            and not any("ClassVar" in str(hint) for hint in cls.__annotations__.values())
            and not any(isinstance(held, cached_property) or _names_class(held) for held in own.values())
        )

    def _has_slots(base):
        """Whether the instances of a base have only attributes that attrs knows."""
        return base in (object, Generic) or ("__attrs_attrs__" in base.__dict__ and not base.__dictoffset__)

    def _names_class(method):
        """Whether a method uses ``super()`` or ``__class__``, which would be the class without slots."""
        code = getattr(getattr(method, "__func__", getattr(method, "fget", method)), "__code__", None)
        return code is not None and "__class__" in code.co_freevars

    def _slotted(cls, on_setattr):
        """Return the class with slots for its attributes; attrs completes it at its first use."""
        given = {name: cls.__dict__.get(name, attrs.NOTHING) for name in cls.__annotations__}
        body = {name: kept for name, kept in cls.__dict__.items() if name not in given}
        for name in ("__dict__", "__weakref__"):
            body.pop(name, None)

        def complete():
            _NOT_USED.pop(made, None)
            fields = {
                name: default if isinstance(default, _Field) else attrs.field(default=default)
                for name, default in given.items()
            }
            # Two threads may both do this. Each step replaces something by an equal thing.
            options = {"these": fields, "slots": False, "on_setattr": on_setattr, "match_args": False}
            attrs.define(made, init=True, eq=False, repr=False, **options)
            made.__match_args__ = tuple(field.name for field in attrs.fields(made) if field.init and not field.kw_only)
            made.__signature__ = None

        def __init__(self, *arguments, **named):  # noqa: N807 - the method until the first instance
            complete()
            made.__init__(self, *arguments, **named)

        body |= {name: _Later(name, complete) for name in _ADDED}
        slots = given if any(base.__weakrefoffset__ for base in cls.__bases__) else (*given, "__weakref__")
        body |= {"__slots__": tuple(slots), "__qualname__": cls.__qualname__, "__init__": __init__}
        made = type(cls)(cls.__name__, cls.__bases__, body)
        _NOT_USED[made] = complete
        return made

    def complete_classes(modules):
        """See above."""
        for cls in list(_NOT_USED):
            # An earlier step or another thread may have completed it.
            if cls.__module__ in modules and (complete := _NOT_USED.get(cls)) is not None:
                complete()
                yield cls.__name__

    class _Later:
        """An attribute of a class that attrs has not completed yet."""

        __slots__ = ("_complete", "_name")

        def __init__(self, name, complete):
            self._name = name
            self._complete = complete

        def __get__(self, instance, owner):
            self._complete()
            return getattr(owner, self._name)

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


__all__ = ["complete_classes", "record", "value"]
