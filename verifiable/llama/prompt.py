"""From a request to the prompt's token ids: one way for provider and auditor."""

from __future__ import annotations

from verifiable.errors import PolicyError
from verifiable.llama.chat import ChatTemplate
from verifiable.llama.model import Model
from verifiable.request import Request


def prompt_ids(model: Model, request: Request) -> list[int]:
    """The ids that an honest provider evaluates for `request`.

    Messages go through the model's own chat template; a text prompt is tokenised with the model's own start token and
    without control tokens; a prompt of ids is taken as it is. Raises PolicyError naming the parameter.
    """
    if request.messages is not None:
        if model.chat_template is None:
            raise PolicyError(
                "the model has no chat template",
                expected="a model made for chat",
                hint="Use /v1/completions with a text prompt.",
                parameter="messages",
            )
        return ChatTemplate(model.chat_template, model).prompt_ids([dict(message) for message in request.messages])
    if isinstance(request.prompt, str):
        return model.tokenize(request.prompt, add_special=True, parse_special=False)
    ids = list(request.prompt or ())
    bad = next((token for token in ids if token >= model.n_vocab), None)
    if bad is not None:
        raise PolicyError("prompt token id", expected=f"0 to {model.n_vocab - 1}", found=bad, parameter="prompt")
    return ids
