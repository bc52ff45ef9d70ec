"""`/openapi.json` describes every route with every status, and `/docs` shows it without any network."""

import re
from html.parser import HTMLParser

import pytest
from jsonschema import Draft202012Validator
from toy_chat import TEMPLATE
from toy_server import FakeEngine, run_server


@pytest.fixture(scope="module")
def client():
    with run_server(template=TEMPLATE) as server, server.client() as client:
        yield client


@pytest.fixture(scope="module")
def schema(client):
    return client.get("/openapi.json").json()


def operations(schema):
    return [
        (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_paths_that_there_are_and_no_others(schema):
    expected = {
        "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/tokenize", "/detokenize",
        "/tokenizer_info", "/live", "/ready", "/health", "/ping", "/load", "/version", "/metrics", "/state",
        "/abort_requests", "/v1/chat/completions", "/v1/responses", "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
    }  # fmt: skip
    assert expected <= set(schema["paths"])


def test_every_operation_says_how_it_can_end(schema):
    for path, method, operation in operations(schema):
        statuses = set(operation["responses"])
        assert {"200", "400", "403", "431", "500"} <= statuses, path
        assert "422" not in statuses
        if method == "post" and path not in ("/ping", "/v1/responses/{response_id}/cancel"):
            assert {"401", "404", "408", "413", "415", "429", "503"} <= statuses, path
            assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if int(status) >= 400 and status != "503":
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")


def test_every_reference_leads_somewhere(schema):
    found = re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', str(schema).replace("'", '"'))
    assert found
    assert set(found) <= set(schema["components"]["schemas"])


def test_every_link_leads_to_an_operation_and_names_its_parameters(schema):
    links = schema["paths"]["/v1/responses"]["post"]["responses"]["200"]["links"]
    assert set(links) == {"retrieve", "cancel", "delete"}
    for link in links.values():
        *_, path, method = link["operationRef"].split("/")
        operation = schema["paths"][path.replace("~1", "/")][method]
        assert set(link["parameters"]) <= {each["name"] for each in operation["parameters"]}


@pytest.mark.parametrize(
    ("message", "is_valid"),
    [
        ({"role": "user", "content": "x"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, True),
        ({"role": "user", "content": [{"type": "text"}]}, False),
        ({"role": "user"}, False),
        ({"role": "user", "content": None}, False),
        ({"role": "user", "content": "x", "tool_calls": []}, True),
        ({"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}, False),
        ({"role": "system", "content": "x", "function_call": {"name": "f"}}, False),
        ({"role": "assistant"}, True),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, True),
        ({"role": "tool", "content": "x"}, False),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, False),
        ({"role": "tool", "content": "x", "tool_call_id": "a"}, True),
    ],
)
def test_what_a_message_needs_is_described_as_it_is_checked(client, schema, message, is_valid):
    part = {"$ref": "#/components/schemas/ChatMessage", "components": schema["components"]}
    assert Draft202012Validator(part).is_valid(message) == is_valid
    answer = client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 1})
    assert answer.status_code == (200 if is_valid else 400), answer.text


def test_ranges_and_streams_are_described(schema):
    fields = schema["components"]["schemas"]["CompletionRequest"]["properties"]
    temperature = next(each for each in fields["temperature"]["anyOf"] if each["type"] == "number")
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    content = schema["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    data = content["text/event-stream"]["schema"]["properties"]["data"]
    references = [each["$ref"] for each in data["anyOf"][0]["contentSchema"]["anyOf"]]
    assert [each.rpartition("/")[2] for each in references] == ["CompletionChunk", "ErrorAnswer"]
    assert list(schema["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]


class Sources(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]


def test_the_page_needs_no_other_file(client):
    answer = client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    parser = Sources()
    parser.feed(answer.text)
    assert parser.found == []
    assert not re.search(r"https?://|import\(|innerHTML|url\(", answer.text)
    assert client.head("/docs").status_code == 200


def test_both_can_be_left_out():
    with run_server(docs=False) as server, server.client() as client:
        for path in ("/docs", "/openapi.json"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_they_are_found_behind_a_proxy_that_cuts_a_prefix():
    with run_server(root_path="/llm") as server, server.client() as client:
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_the_limits_of_the_model_and_the_server_are_described():
    with run_server(max_logprobs=7) as server, server.client() as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        fields = schemas["CompletionRequest"]["properties"]
        ids = next(each for each in fields["allowed_token_ids"]["anyOf"] if each["type"] == "array")
        assert ids["items"]["maximum"] == 256
        assert schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] == 256
        assert next(each for each in fields["logprobs"]["anyOf"] if each["type"] == "integer")["maximum"] == 7
        assert fields["suffix"]["type"] == "null"
        assert [rule["if"]["required"] for rule in schemas["CompletionRequest"]["allOf"]] == [
            ["stream_options"], ["prompt_logprobs"], ["max_tokens"],
        ]  # fmt: skip


def test_while_the_model_loads_its_limits_are_not_known_yet():
    engine = FakeEngine()
    info, engine.info = engine.info, None
    with run_server(engine) as server, server.client() as client:
        items = [client.get("/openapi.json").json()]
        server.call(lambda: setattr(engine, "info", info))
        items.append(client.get("/openapi.json").json())
    maxima = [
        each["components"]["schemas"]["DetokenizeRequest"]["properties"]["tokens"]["items"] for each in items
    ]
    assert ["maximum" in each for each in maxima] == [False, True]
