"""The forms of the JSON between plugind and a handler in another process, from which its JSON Schema is made.

``python -m tests.tools.schemas --write`` writes ``handlers.schema.json`` beside this module. A handler ignores
what it does not know in a line, so a line may have more keys; what is posted may not.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NotRequired, TypedDict

from ..handlers.remote import AskKind
from ..leases.asked_json import MAX_TEXT
from ..plugins.health import Health

#: What a handler can name or answer in one body.
MOST_AT_ONCE: Final = 256
#: Characters of the path of a socket, each byte of which may be written as four.
MAX_PATH: Final = 4 * 4096

# The metadata are keywords of JSON Schema.
Word = Annotated[str, ("minLength", 1), ("maxLength", MAX_TEXT)]
SocketPath = Annotated[str, ("minLength", 1), ("maxLength", MAX_PATH)]
Said = Annotated[str, ("minLength", 1)]
_FEW: Final = ("maxItems", MOST_AT_ONCE)


# --- lines, which the daemon sends ------------------------------------------------------------------------------------


class InstanceForm(TypedDict):
    """One appearance of a plugin's socket."""

    instance: Word
    name: Word
    socket: SocketPath


class PluginForm(InstanceForm):
    """A plugin; one of an earlier run of plugind is only an instance. device and inode are those of its socket."""

    type: NotRequired[str]
    endpoint: NotRequired[str]
    versions: NotRequired[list[str]]
    privileged: NotRequired[bool]
    uid: NotRequired[int | None]
    pid: NotRequired[int | None]
    device: NotRequired[int | None]
    inode: NotRequired[int | None]


class HelloForm(TypedDict):
    """The session; heartbeat is in seconds."""

    type: str
    version: str
    epoch: str
    session: Word
    most_open: int
    heartbeat: float


class HelloLine(TypedDict):
    """The first line."""

    hello: HelloForm


class AskLine(TypedDict):
    """What the handler is asked; an ask without seconds has no deadline, and a ping has no plugin."""

    ask: AskKind
    id: int
    plugin: NotRequired[PluginForm]
    seconds: NotRequired[float]


class WithdrawnLine(TypedDict):
    """Nobody waits for the answer to this ask any more."""

    withdrawn: int


class RoleForm(TypedDict):
    """Whether a followed instance is the active one of its name."""

    instance: Word
    active: bool


class RoleLine(TypedDict):
    """The role of a followed instance."""

    role: RoleForm


class SyncedLine(TypedDict):
    """The handler was asked to deregister all that it should not have."""

    synced: Literal[True]


class ErrorForm(TypedDict):
    """Why a session ends, as its last line; or why a request is refused."""

    error: Said


#: A line of the stream that is not empty. An empty one is a heartbeat.
Line = HelloLine | AskLine | WithdrawnLine | RoleLine | SyncedLine | ErrorForm


# --- what handlers post, and the answers ------------------------------------------------------------------------------


class HeldForm(InstanceForm):
    """An instance that the handler has, as it was named in an ask."""


class HeldBody(TypedDict):
    """What the handler has; more says that another list follows."""

    session: Word
    held: Annotated[list[HeldForm], _FEW]
    more: NotRequired[bool]


class AnswerForm(TypedDict):
    """The answer to one ask; without error all is well."""

    id: int
    error: NotRequired[Said | None]
    cause: NotRequired[Said | None]


class AnswersBody(TypedDict):
    """Answers to asks."""

    session: Word
    answers: Annotated[list[AnswerForm], _FEW]


class HealthForm(TypedDict):
    """What is known of an instance that the handler follows."""

    instance: Word
    health: NotRequired[Health]
    reason: NotRequired[str]
    facts: NotRequired[dict[str, str] | None]
    warnings: NotRequired[list[Word]]
    usable: NotRequired[bool]
    gone: NotRequired[Word]


class HealthBody(TypedDict):
    """What is known of instances."""

    session: Word
    plugins: Annotated[list[HealthForm], _FEW]


class HeldAnswer(TypedDict):
    """How many instances were noted."""

    held: int


class CountedAnswer(TypedDict):
    """How many answers or reports were taken, and how many were dropped."""

    taken: int
    dropped: int
