"""Variables of a lease that are made of those of a device plugin: ``CUDA_VISIBLE_DEVICES`` of NVIDIA's own, for one.

A plugin sets variables for its container engine. The libraries that a process uses read others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Final

import attrs

from ..checks import copied
from ..errors import ConfigError
from ..text import cut, quoted
from .answers import OWN_PREFIX, AnswerError, checked
from .values import Answer, UserLimits

_SHOWN: Final = 64
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that take indices, too. An index is another device to each library, so they get UUIDs alone.
_OF_UUIDS: Final = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
_UUIDS: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+(,(GPU|MIG)-[0-9A-Za-z/-]+)*")


@attrs.frozen
class ResourceConfig:
    """What leases of one resource get besides what its device plugin answers, and the limits of its users.

    Raises:
      ConfigError: if a name or a value of a variable cannot be used.
    """

    #: Variables, made of those that the plugin sets: ``"{NAME}"``.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=copied, hash=False)
    #: For the devices that are in no pool; a pool has limits of its own.
    limits: UserLimits = attrs.field(factory=UserLimits)

    def __attrs_post_init__(self) -> None:
        for name, template in self.env.items():
            if not _VARIABLE.fullmatch(name) or name.startswith(OWN_PREFIX):
                raise ConfigError(f"{_quoted(name)} cannot be the name of a variable")
            try:
                _sources(template)
            except ValueError as error:
                raise ConfigError(f"the variable {name} is {_quoted(template)}: {error}") from None


def _sources(template: str) -> list[str]:
    """Return the names of the variables in a template.

    Raises:
      ValueError: if it is none.
    """
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is not None:
            if not _VARIABLE.fullmatch(name) or form or conversion:
                raise ValueError("between braces there must be the name of a variable")
            names.append(name)
    return names


def _quoted(text: str) -> str:
    return quoted(cut(text, _SHOWN))


_NVIDIA: Final = ResourceConfig({"CUDA_VISIBLE_DEVICES": "{NVIDIA_VISIBLE_DEVICES}"})
#: What is known of common device plugins. Those of AMD and Intel set no variables.
BUILT_IN: Final[Mapping[str, ResourceConfig]] = {"nvidia.com/gpu": _NVIDIA, "nvidia.com/gpu.shared": _NVIDIA}


def with_built_in(given: Mapping[str, ResourceConfig]) -> Mapping[str, ResourceConfig]:
    """Return the given resources, and the built-in ones that are not given."""
    return {**BUILT_IN, **given}


def mapped(answer: Answer, resource: ResourceConfig, *, container: bool) -> Answer:
    """Return an answer with the mapped variables that it does not set itself.

    In a ``container``, and where a process cannot use the answer, one that cannot be made is left out: the engine gives
    the container its devices and no others.

    Raises:
      AnswerError: if one cannot be made for a process, which would see all devices without it, or is too large.
    """
    env = dict(answer.env)
    for name, template in resource.env.items():
        if name in answer.env:
            continue
        try:
            env[name] = _value_of(name, template, answer.env)
        except AnswerError:
            if not container and not answer.needs_container:
                raise
    if env == answer.env:
        return answer
    return attrs.evolve(checked(attrs.evolve(answer, env=env)), identities=answer.identities)


def _value_of(name: str, template: str, env: Mapping[str, str]) -> str:
    for source in _sources(template):
        if source not in env:
            raise AnswerError(f"it does not set {source}, of which {name} is made: {_ADVICE}")
    made = template.format_map(env)
    if name in _OF_UUIDS and not _UUIDS.fullmatch(made):
        raise AnswerError(f"{name} would be {_quoted(made)}, and takes UUIDs such as GPU-…, no indices: {_ADVICE}")
    return made


_ADVICE: Final = "see the setting resources, or give the devices to a container"
