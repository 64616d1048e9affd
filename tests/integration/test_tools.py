"""Tools, calls, results and reasoning in a prompt: through templates that write them, as text through others, and never
as control tokens.

The templates here are written in the manner of those in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from verifiable.errors import PolicyError
from verifiable.llama.chat.chat import ChatTemplate
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.chat.tools import Abilities
from verifiable.llama.model import Model
from verifiable.request.request import CHAT, parse_body, parse_canonical

TURNS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}"
    "{% endif %}{{ '<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\n</tools><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif message.role == 'assistant' and message.tool_calls %}{{ '<|im_start|>assistant' }}"
    "{% if message.content %}{{ '\n' + message.content }}{% endif %}{% for call in message.tool_calls %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif not (loop.first and tools and message.role == 'system') %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + TURNS
)
"""Tools as lines of JSON, calls and results between tags; arguments as an object."""
STRINGS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] }}{% if message['tool_calls'] is defined %}"
    "{% for call in message['tool_calls'] %}{{ call['function']['name'] + '\n' + call['function']['arguments'] }}"
    "{% endfor %}{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}" + TURNS
)
"""Wants arguments as text."""
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{% if message.reasoning_content and"
    " loop.last %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}{{ message.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}" + TURNS
)
PROPERTIES = (
    "{% for tool in tools %}{{ '<|im_start|>' + tool.function.name + '(' }}"
    "{% for name, each in tool.function.parameters.properties.items() %}{{ name + ': ' + each.type }}"
    "{% if each.description %}{{ ' # ' + each.description }}{% endif %}{% endfor %}{{ ')<|im_end|>\n' }}{% endfor %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)
"""Goes into the schema of a tool, by the names that schemas use."""
ALTERNATE = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant take turns') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}" + TURNS
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where?"}}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
USER = {"role": "user", "content": "Rain?"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sun"}


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Model]:
    with Model.load(smollm2) as model:
        yield model


@pytest.fixture(scope="module")
def gemma(gemma3: Path) -> Iterator[Model]:
    with Model.load(gemma3) as model:
        yield model


def abilities(source: str, model: Model) -> Abilities:
    return ChatTemplate(source, model)._abilities


def test_what_templates_can_do_is_found_by_rendering(smol: Model) -> None:
    assert smol.chat_template is not None
    plain = abilities(smol.chat_template, smol)
    assert not any((plain.tools, plain.calls, plain.results, plain.reasoning))
    assert plain.tool_role
    hermes = abilities(HERMES, smol)
    assert hermes.tools
    assert hermes.calls
    assert hermes.objects
    assert hermes.results
    strings = abilities(STRINGS, smol)
    assert strings.calls
    assert not strings.objects
    assert abilities(THINKING, smol).reasoning
    assert abilities(PROPERTIES, smol).tools
    assert not abilities(ALTERNATE, smol).tool_role


def test_a_template_that_knows_tools_writes_them(smol: Model) -> None:
    text = ChatTemplate(HERMES, smol).render([USER, CALLING, RESULT], [TOOL])
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<tool_response>\nsun\n</tool_response>" in text
    assert "call_1" not in text
    bad = {**CALLING, "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": '{"city": '}}]}
    assert '"arguments": "{\\"city\\": "}' in ChatTemplate(HERMES, smol).render([USER, bad])
    assert 'weather\n{"city": "Paris"}' in ChatTemplate(STRINGS, smol).render([USER, CALLING])


def test_what_a_template_does_not_know_is_text(smol: Model) -> None:
    assert smol.chat_template is not None
    chat = ChatTemplate(smol.chat_template, smol)
    thinking = {**CALLING, "content": "Let me see.", "reasoning_content": "Paris?"}
    text = chat.render([{"role": "system", "content": "Be brief."}, USER, thinking, RESULT], [TOOL])
    tools = (
        '{"tools":[{"function":{"description":"The weather of a city.","name":"weather","parameters":{"properties":'
        '{"city":{"description":"Where?","type":"string"}},"type":"object"}},"type":"function"}]}'
    )
    calls = (
        '{"tool_calls":[{"function":{"arguments":"{\\"city\\": \\"Paris\\"}","name":"weather"},"id":"call_1",'
        '"type":"function"}]}'
    )
    assert text == (
        f"<|im_start|>system\nBe brief.\n\n{tools}<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n"
        f'<|im_start|>assistant\n{{"reasoning_content":"Paris?"}}\nLet me see.\n{calls}<|im_end|>\n'
        '<|im_start|>tool\n{"tool_call_id":"call_1"}\nsun<|im_end|>\n<|im_start|>assistant\n'
    )
    assert f"<|im_start|>user\n{tools}\n\nRain?<|im_end|>" in chat.render([USER], [TOOL])


def test_results_take_a_users_turn_where_a_template_wants_turns(smol: Model) -> None:
    text = ChatTemplate(ALTERNATE, smol).render([USER, CALLING, RESULT, {**RESULT, "content": "wind"}])
    assert text.endswith(
        '<|im_start|>user\n{"tool_call_id":"call_1"}\nsun\n{"tool_call_id":"call_1"}\nwind<|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_a_template_may_leave_reasoning_out(smol: Model) -> None:
    chat = ChatTemplate(THINKING, smol)
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert "Hm." not in chat.render([USER, said, USER])
    assert "<think>\nHm.\n</think>\nYes." in chat.render([USER, said])


def test_developers_are_the_system_unless_the_template_knows_them(smol: Model) -> None:
    assert smol.chat_template is not None
    chat = ChatTemplate(smol.chat_template, smol)
    told = [{"role": role, "content": "Be brief."} for role in ("system", "developer")]
    assert chat.render([told[0], USER]) == chat.render([told[1], USER])
    known = ChatTemplate("{% if messages[0].role == 'developer' %}D{% endif %}{{ messages[0].content }}", smol)
    assert known.render(told[1:]) == "DBe brief."


def everywhere(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation and tools with a text in every place that a client chooses freely."""
    schema = {
        "type": "object",
        "title": text,
        "properties": {f"a{text}": {"type": "string", "enum": [text], "description": text}, text: {"type": text}},
        "required": [text],
    }
    tool = {"type": "function", "function": {"name": f"f{text}", "description": text, "parameters": schema}}
    arguments = json.dumps({text: [text, {f"role{text}": text, "type": text, "role": text}], "name": text})
    calls = [
        {"id": text, "type": "function", "function": {"name": text, "arguments": arguments}},
        {"id": "x", "type": "function", "function": {"name": "x", "arguments": text}},
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text, "name": text},
        {"role": "user", "content": text, "name": text},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": calls},
        {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        {"role": "assistant", "content": None, "reasoning_content": f"{text}{text}", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": f" {text}\n"},
    ]
    return messages, [tool, {"type": "function", "function": {"name": "x", "description": f"{text} {text}"}}]


TEMPLATES = {"smol": None, "hermes": HERMES, "strings": STRINGS, "thinking": THINKING, "properties": PROPERTIES}
GEMMA = HERMES.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")
GEMMA_PLAIN = THINKING.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")


def control(model: Model, ids: list[int]) -> list[int]:
    return [token for token in ids if token in model.control_attributes]


def unchanged(chat: ChatTemplate, model: Model, text: str) -> None:
    assert control(model, chat.prompt_ids(*everywhere(text))) == control(model, chat.prompt_ids(*everywhere("x"))), text


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_control_token_comes_from_tools_calls_or_results(smol: Model, name: str) -> None:
    source = TEMPLATES[name] or smol.chat_template
    assert source is not None
    chat = ChatTemplate(source, smol)
    assert control(smol, chat.prompt_ids(*everywhere("x")))
    for text in smol.control_tokens:
        unchanged(chat, smol, text)


@pytest.mark.parametrize("source", [GEMMA, GEMMA_PLAIN])
def test_nor_with_any_special_token_of_another_model(gemma: Model, source: str) -> None:
    chat = ChatTemplate(source, gemma)
    plain = control(gemma, chat.prompt_ids(*everywhere("x")))
    assert plain
    tokens = list(gemma.control_tokens)
    unused = [each for each in tokens if "unused" in each]
    for text in [each for each in tokens if "unused" not in each] + unused[:2]:
        unchanged(chat, gemma, text)
    # The thousands of unused ones are told from each other by their number alone: many at once.
    for start in range(0, len(unused), 300):
        unchanged(chat, gemma, "".join(unused[start : start + 300]))


PIECES = st.one_of(
    st.sampled_from(["<", "|", ">", "im_", "end", "start", "\n", " ", '"', "\\", "}", "{", "</tool_response>", "user"]),
    st.text(max_size=4),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_text_with_control_tokens_in_it(smol: Model, data: st.DataObject) -> None:
    token = st.sampled_from(list(smol.control_tokens))
    text = "".join(data.draw(st.lists(st.one_of(PIECES, token, token.map(lambda t: t[:-1])), max_size=6)))
    source = data.draw(st.sampled_from([HERMES, STRINGS, THINKING, smol.chat_template or ""]))
    chat = ChatTemplate(source, smol)
    # Templates ask whether there is a text, so that an empty one may change what they write themselves.
    unchanged(chat, smol, f"x{text}")


def test_a_request_means_the_same_to_an_auditor(smol: Model) -> None:
    """Order of names and spellings of numbers are not part of a request, and so not of a prompt."""
    tool = '{"function":{"parameters":{"type":"object","properties":{"n":{"maximum":3.0,"default":1e2}}},"name":"f"}'
    body = '{"messages":[{"role":"user","content":"x"}],"tools":[' + tool + ',"type":"function"}]}'
    request = parse_body(CHAT, body.encode())
    again = parse_canonical(request.canonical)
    assert prompt_ids(smol, request) == prompt_ids(smol, again)
    chat = ChatTemplate(HERMES, smol)
    rendered = chat.render(request.messages or (), request.tools)
    assert rendered == chat.render(again.messages or (), again.tools)
    assert (
        '{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"default": 100, '
        '"maximum": 3}}, "type": "object"}}}'
    ) in rendered


@pytest.mark.parametrize(
    "arguments",
    ["", "[1]", '"x"', '{"a": NaN}', '{"a": 1e999}', '{"a": ' * 900 + "1" + "}" * 900, "[" * 100_000, "{" + "1" * 9000],
)
def test_arguments_that_are_no_plain_object_stay_text(smol: Model, arguments: str) -> None:
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    text = ChatTemplate(HERMES, smol).render([USER, {**CALLING, "tool_calls": [call]}])
    assert f'"arguments": {json.dumps(arguments)}}}' in text
    ChatTemplate(HERMES, smol).prompt_ids([USER, {**CALLING, "tool_calls": [call]}])


def test_tools_that_may_not_be_called_are_not_told_of(smol: Model) -> None:
    def asked(**fields: Any) -> list[int]:
        return prompt_ids(smol, parse_body(CHAT, json.dumps({"messages": [USER], **fields}).encode()))

    assert asked(tools=[TOOL], tool_choice="none") == asked() != asked(tools=[TOOL])
    assert asked(tools=[TOOL]) == asked(tools=[TOOL], tool_choice="auto") == asked(tools=[TOOL], tool_choice="required")


def test_a_tool_too_deep_is_refused_by_name(smol: Model) -> None:
    value: Any = {}
    for _ in range(40):
        value = {"items": value}
    tool = {"type": "function", "function": {"name": "f", "parameters": value}}
    with pytest.raises(PolicyError) as caught:
        prompt_ids(smol, parse_body(CHAT, json.dumps({"messages": [USER], "tools": [tool]}).encode()))
    assert caught.value.parameter == "tools"
