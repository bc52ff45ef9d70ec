"""Requests whose fields have wrong types and impossible values, made from what `/openapi.json` describes.

A request starts as one that makes sense; then some of its nodes, or fields that it lacks, get a value from
`RAW`: JSON as text, because some of it is no value that Python has (NaN, 1e400, half a surrogate pair).
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_ERROR_BYTES = 16_000
NOT_FUZZED = ("/abort_requests", "/ping")  # the first would end the other requests, the second reads nothing
RAW = (
    "null", "true", "false", "0", "-1", "1", "2", "3", "1.5", "0.0", "-0.0", "1e-320", "1e-5", "1e400",
    "NaN", "-Infinity", "2147483648", "9223372036854775807", "-9223372036854775809", "1" + "0" * 400, '""',
    '"x"', '"5"', '"true"', '"\\ud800"', '"\\u0000"', '"' + "é" * 3000 + '"', '"' + "x" * 20_000 + '"',
    "[]", "[null]", "[[]]", "[[[]]]", "[1]", "[-1]", "[4294967296]", "[1.0]", "[true]", '["a"]', '[""]',
    '["a", 1]', "[{}]", "[[1], [2, 3]]", "{}", '{"a": 1}', '{"1": 1}', '{"1": "x"}', '{"-1": 5}',
    '{"999999": 1}', '{"": null}', '{"type": "text"}', '{"type": "json_object"}', '{"type": []}',
    '{"role": "user"}', '{"json": {"$ref": "#"}}', '{"include_usage": 1}', "[" + "1," * 5000 + "1]",
    "[" * 200 + "]" * 200, '{"a":' * 100 + "1" + "}" * 100,
)  # fmt: skip
MILD = ("null", "true", "false", "0", "1", "2", "0.5", '"x"', '["a"]', "[5]", "[[5]]", "{}", '{"5": 1}')
"""Values that many a field takes: with these alone, odd combinations get as far as the engine."""

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
BASES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "a b", "max_tokens": 2},
        {"prompt": [5, 6], "max_tokens": 0, "echo": True, "logprobs": 1, "n": 2},
        {
            "prompt": ["a", "b"], "max_tokens": 2, "stream": True, "stop": ["x", "y"], "logit_bias": {"5": 1},
            "stream_options": {"include_usage": True}, "allowed_token_ids": [5, 6], "bad_words": ["q"],
        },
    ],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant", "content": None,
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1"},
            ],
            "tools": [TOOL], "tool_choice": "auto", "max_completion_tokens": 2, "stream": True,
            "logprobs": True, "top_logprobs": 1,
        },
    ],
    "/v1/responses": [
        {"input": "hi", "max_output_tokens": 2},
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "max_output_tokens": 2,
        },
    ],
    "/tokenize": [{"prompt": "a b"}, {"messages": [{"role": "user", "content": "hi"}]}],
    "/detokenize": [{"tokens": [5, 6]}],
}  # fmt: skip


class Raw(str):
    """JSON as it is to be sent."""


@dataclass(frozen=True)
class Confused:
    """One request."""

    path: str
    body: bytes


def confused_requests(description: dict[str, Any], seed: int) -> Iterator[Confused]:
    """Yield requests without end, the same for the same description and seed."""
    rng = random.Random(seed)
    fields = {path: _fields(description, operation) for path, operation in _posts(description)}
    for path in fields:  # every field has every kind of value, before chance decides
        for name in fields[path]:
            for raw in rng.sample(RAW, 8):
                yield _request(path, {**BASES.get(path, [{}])[0], name: Raw(raw)})
    paths = sorted(fields)
    while True:
        path = rng.choice(paths)
        body = json.loads(json.dumps(rng.choice(BASES.get(path, [{}]))))
        values = rng.choice((RAW, MILD))
        for _ in range(rng.choice((1, 1, 2, 3))):
            if fields[path] and rng.random() < 0.6:
                body[rng.choice(fields[path])] = Raw(rng.choice(values))
            else:
                _replace_node(body, values, rng)
        yield _request(path, body)


def problem_of(status: int, content_type: str, content: bytes) -> str | None:
    """Say what is wrong with an answer to such a request, if anything is."""
    if status >= 500:
        return f"status {status}: {content[:300]!r}"
    if content_type.startswith("text/event-stream"):
        events = content.decode().split("\n\n")
        return None if events[-2:] == ["data: [DONE]", ""] else f"a stream ends with {content[-100:]!r}"
    try:
        body = json.loads(content, parse_constant=_refuse)
    except ValueError as error:
        return f"no strict JSON ({error}): {content[:300]!r}"
    if status == 200:
        return None
    if len(content) >= MAX_ERROR_BYTES:
        return f"an error of {len(content)} bytes"
    if list(body) != ["error"] or set(body["error"]) != {"message", "type", "param", "code"}:
        return f"an error of another form: {content[:300]!r}"
    return None


def _refuse(name: str) -> None:
    raise ValueError(name)


def _posts(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in sorted(description["paths"].items()):
        if "post" in methods and path not in NOT_FUZZED and "{" not in path:
            yield path, methods["post"]


def _fields(description: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    return sorted(description["components"]["schemas"][name].get("properties", {}))


def _replace_node(body: dict[str, Any], values: tuple[str, ...], rng: random.Random) -> None:
    """Replace a value anywhere in the tree."""
    node: Any = body
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        node[key] = Raw(rng.choice(values))
        return


def _request(path: str, body: Any) -> Confused:
    return Confused(path, _dump(body).encode())


def _dump(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dump, value)) + "]"
    return json.dumps(value)
