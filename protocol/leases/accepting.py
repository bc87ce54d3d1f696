"""What a lease takes of a plugin's answer: with mapped variables, and of somebody else's plugin what is permitted."""

from __future__ import annotations

from collections.abc import Set

from ..trust.users import user_words
from .answers import AnswerError, left_out, permitted
from .mapped import mapped
from .messages import Allocated, LeaseRules
from .values import Answer, Request


def accepted(
    message: Allocated, request: Request, uid: int, rules: LeaseRules, privileged: Set[int]
) -> tuple[Answer, tuple[str, ...]]:
    """Return what is taken for the lease of user ``uid``, and warnings about what is left out.

    Raises:
        AnswerError: The answer cannot be used, or has what is not permitted; the text names the resource.
    """
    answer, name = message.answer, message.resource
    if (config := rules.resources.get(name)) is not None:
        try:
            answer = mapped(answer, config, container=request.container)
        except AnswerError as error:
            raise AnswerError(f"{name}: the answer of its device plugin to Allocate cannot be used: {error}") from error
    # What root asks for on behalf of a user must not bring root the variables of that user's plugin.
    trusted = privileged if request.for_uid is not None else privileged | {uid}
    if message.uid is not None and message.uid in trusted:
        return answer, ()
    whose = user_words(message.uid)
    try:
        answer, names = permitted(answer, name, rules.permitted)
    except AnswerError as error:
        text = f"{name}: the answer of a device plugin of {whose} to Allocate is not permitted: {error}"
        raise AnswerError(text) from error
    return answer, (left_out(name, names, whose),) if names else ()
