"""From a request to the prompt's token ids: one way for provider and auditor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from verifiable.errors import PolicyError
from verifiable.llama.chat.chat import ChatTemplate
from verifiable.llama.model import Model
from verifiable.request.request import Request

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def prompt_ids(model: Model, request: Request, opened: int | None = None) -> list[int]:
    """The ids that an honest provider evaluates for `request`.

    Messages and tools go through the model's own chat template; a text prompt is tokenised with the model's own start
    token and without control tokens; a prompt of ids is taken as it is.

    `opened` is when the request's session was opened, in milliseconds since 1970, as its first leaf says. A template
    that writes the date writes this one, in UTC; without it such a template is refused. Raises PolicyError, which
    names the parameter.
    """
    if request.messages is not None:
        if model.chat_template is None:
            raise PolicyError(
                "the model has no chat template",
                expected="a model made for chat",
                hint="Use /v1/completions with a text prompt.",
                parameter="messages",
            )
        template = ChatTemplate(model.chat_template, model)
        return template.prompt_ids(request.messages, request.tools or None, _date(opened))
    if isinstance(request.prompt, str):
        return model.tokenize(request.prompt, add_special=True, parse_special=False)
    ids = list(request.prompt or ())
    bad = next((token for token in ids if token >= model.n_vocab), None)
    if bad is not None:
        raise PolicyError("prompt token id", expected=f"0 to {model.n_vocab - 1}", found=bad, parameter="prompt")
    return ids


def _date(opened: int | None) -> datetime | None:
    """The day, from its midnight: with each finer time that a provider could choose it would choose another draw."""
    try:
        return None if opened is None else _EPOCH + timedelta(days=opened // 86_400_000)
    except OverflowError as error:
        raise PolicyError("the session's time", expected="a year up to 9999", found=opened) from error
