"""Values and records: made by attrs when they are first used, as ``attrs.frozen`` and ``attrs.define`` make them."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import attrs
import pytest

from plugind.protocol.values import complete_classes, record, value

T = TypeVar("T")


def positive(_: object, field: attrs.Attribute[float], given: float) -> None:
    if given <= 0:
        raise ValueError(f"{field.name} is not positive")


@value
class Point:
    """A value with all that attrs knows of fields."""

    x: float
    y: float = attrs.field(default=0.0, converter=float)
    scale: float = attrs.field(default=1.0, validator=positive, kw_only=True)
    tags: list[str] = attrs.field(factory=list, eq=False)
    note: str = attrs.field(default="", repr=False)
    total: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y)

    @property
    def doubled(self) -> Point:
        """Return a point as far again."""
        return attrs.evolve(self, x=2 * self.x, y=2 * self.y)


@value
class Pair(Generic[T]):
    left: T
    right: T


@value
class Named(Pair[int]):
    name: str = "none"
    kind: ClassVar[str] = "pair"

    def __repr__(self) -> str:
        return f"{self.name} {super().__repr__()}"


@value
class Empty:
    pass


def fresh() -> type[Point]:
    """Return a class of which there is no instance yet."""

    @value
    class Fresh:
        x: float
        y: float = 0.0

    return Fresh  # type: ignore[return-value] # it has the attributes that the tests use


def test_a_value_has_defaults_converters_validators_and_what_follows_its_init() -> None:
    point = Point(1, "2")
    assert (point.x, point.y, point.scale, point.tags, point.note, point.total) == (1, 2.0, 1.0, [], "", 3.0)
    assert Point(1).tags is not Point(1).tags
    assert point.doubled == Point(2, 4)
    with pytest.raises(ValueError, match="scale is not positive"):
        Point(1, scale=0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg] # this is what is tested
    assert Empty() == Empty()


def test_values_are_equal_and_hash_by_their_attributes_and_their_class() -> None:
    assert Pair(1, 2) == Pair(1, 2) != Pair(1, 3)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2))
    assert Pair(1, 2) != Named(1, 2)
    assert Point(1, tags=["a"]) == Point(1, tags=["b"])
    assert repr(Point(1, note="hidden")) == "Point(x=1, y=0.0, scale=1.0, tags=[], total=1.0)"
    assert repr(Named(1, 2)) == "none Named(left=1, right=2, name='none')"


@pytest.mark.parametrize(
    "use",
    [
        lambda made: made(1.0),
        lambda made: [field.name for field in attrs.fields(made)],
        lambda made: made.__match_args__,
        lambda made: [*inspect.signature(made).parameters],
    ],
)
def test_attrs_completes_a_class_when_it_is_first_used(use: Callable[[type[Point]], object]) -> None:
    made = fresh()
    assert not isinstance(vars(made)["__attrs_attrs__"], tuple)
    found = use(made)
    assert isinstance(vars(made)["__attrs_attrs__"], tuple)
    assert found in (made(1.0), ["x", "y"], ("x", "y"))


def test_a_class_that_inherits_from_one_that_nobody_used_has_its_attributes() -> None:
    base = fresh()

    @attrs.frozen
    class Further(base):  # type: ignore[valid-type, misc] # the checker knows no base that is made in a function
        z: float = 3.0

    assert attrs.astuple(Further(1)) == (1, 0.0, 3.0)
    assert attrs.astuple(Named(1, 2, "three")) == (1, 2, "three")
    assert attrs.has(fresh())


def test_a_value_has_slots_alone_and_can_be_matched_referred_to_copied_and_pickled() -> None:
    point = Point(1, 2)
    assert not hasattr(point, "__dict__")
    assert weakref.ref(point)() is point
    assert copy.deepcopy(point) == copy.copy(point) == pickle.loads(pickle.dumps(point)) == point
    match point:
        case Point(x, y, note=note):
            assert (x, y, note) == (1, 2.0, "")
    assert Point.__match_args__ == ("x", "y", "tags", "note")
    assert (Point.__module__, Point.__qualname__, Point.__doc__) == (
        __name__,
        "Point",
        "A value with all that attrs knows of fields.",
    )


def test_threads_may_use_a_class_first_at_the_same_time() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            made, found = fresh(), list[object]()
            threads = [
                threading.Thread(target=lambda made=made, found=found: found.append(made(1.0))) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [made(1.0)] * 4
    finally:
        sys.setswitchinterval(interval)


@record
class Count:
    """A record with what it counts."""

    name: str
    number: int = 0
    seen: list[str] = attrs.field(factory=list)

    def add(self, name: str) -> None:
        """Count one more."""
        self.number += 1
        self.seen.append(name)


@record(eq=False)
class Holder(Generic[T]):
    held: T


@record
class Further(Count):
    last: str = ""


@record
class Checked:
    scale: float = attrs.field(default=1.0, validator=positive)


def test_a_record_changes_and_is_compared_by_its_attributes_unless_it_is_to_be_the_same_one() -> None:
    count = Count("a")
    count.add("x")
    assert count == Count("a", 1, ["x"]) != Count("a", 2, ["x"])
    assert count != Further("a", 1, ["x"])
    assert repr(Further("a", last="b")) == "Further(name='a', number=0, seen=[], last='b')"
    with pytest.raises(TypeError, match="unhashable type: 'Count'"):
        hash(count)
    one = Holder(count)
    assert one.held is count
    assert one == one
    assert one != Holder(count)
    assert {one: 1}[one] == 1


def test_a_record_has_slots_alone_and_the_attributes_that_it_inherits() -> None:
    further = Further("a", 1, ["x"], "y")
    assert attrs.astuple(further) == ("a", 1, ["x"], "y")
    assert vars(Further)["__slots__"] == ("last",)
    assert not hasattr(further, "__dict__")
    assert weakref.ref(further)() is further
    assert copy.deepcopy(further) == pickle.loads(pickle.dumps(further)) == further


def test_what_is_set_in_a_record_is_checked_where_attrs_would_check_it() -> None:
    checked = Checked()
    with pytest.raises(ValueError, match="scale is not positive"):
        checked.scale = 0.0


def test_attrs_completes_a_record_when_it_is_first_used_also_one_that_inherits() -> None:
    @record
    class Base:
        x: float = 0.0

    @record
    class Fresh(Base):
        y: float = 0.0

    assert not isinstance(vars(Fresh)["__attrs_attrs__"], tuple)
    fresh = Fresh(1.0)
    assert isinstance(vars(Fresh)["__attrs_attrs__"], tuple)
    fresh.x = 2.0
    assert fresh == Fresh(2.0)
    assert isinstance(vars(Base)["__attrs_attrs__"], tuple)


def test_the_classes_of_some_modules_can_be_completed_before_they_are_used() -> None:
    @record
    class Base:
        x: float = 0.0

    @record
    class Further(Base):
        y: float = 0.0

    @value
    class Elsewhere:
        z: float = 0.0

    Elsewhere.__module__ = "elsewhere"
    completed = [*complete_classes({__name__})]
    assert {"Base", "Further"} <= {*completed}
    assert [isinstance(vars(made)["__attrs_attrs__"], tuple) for made in (Base, Further, Elsewhere)] == [
        True,
        True,
        False,
    ]
    assert [*complete_classes({__name__})] == []
    assert Further(1.0, 2.0) == Further(1.0, 2.0)
