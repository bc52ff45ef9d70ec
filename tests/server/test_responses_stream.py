"""Streams of `/v1/responses`: the events and their order, and how they end otherwise than by themselves."""

import time

import openai
import pytest
from starlette.datastructures import Headers
from toy_responses import FUNCTION, PATH, events_of, masked, post, serving, stream
from toy_server import byte_tokenizer, says, wait_until

from mambad.server.access import KeyRing
from mambad.server.tenants import key_digest, tenant_of

MERGES = [("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o"), ("Ġ", "y"), ("Ġy", "o"), ("Ġyo", "u")]
TURN = '<think>hm</think>Sure.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_the_events_of_a_text():
    text = byte_tokenizer(MERGES)
    ids = [*text.encode("hello you", False), 0]
    with serving(lambda submission: ids, text) as server:
        events = masked(stream(server))
        whole = masked(post(server))
    begun = whole | {"status": "in_progress", "completed_at": None, "output": [], "usage": None}
    del begun["mambad"]
    item = {"id": "msg_ID", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    where = {"output_index": 0, "item_id": "msg_ID", "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    done = part | {"text": "hello you"}
    ended = item | {"status": "completed", "content": [done]}
    delta = {"type": "response.output_text.delta", **where, "logprobs": []}
    expected = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **where, "part": part},
        delta | {"delta": "hello"},
        delta | {"delta": " you"},
        {"type": "response.output_text.done", **where, "text": "hello you", "logprobs": []},
        {"type": "response.content_part.done", **where, "part": done},
        {"type": "response.output_item.done", "output_index": 0, "item": ended},
        {"type": "response.completed", "response": whole},
    ]
    assert events == [event | {"sequence_number": number} for number, event in enumerate(expected)]
    assert whole["output"] == [ended]


def test_the_events_of_thoughts_and_calls():
    with serving(says(TURN)) as server:
        server.engine.burst = 1000
        events = stream(server, tools=[FUNCTION])
        names = [event["type"].removeprefix("response.") for event in events]
    assert names == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    (added,) = [event["item"] for event in events if event.get("item", {}).get("name")][:1]
    assert (added["arguments"], added["status"]) == ("", "in_progress")
    done = next(event for event in events if event["type"].endswith("arguments.done"))
    assert (done["name"], done["arguments"]) == ("f", '{"a": 1}')
    assert (done["item_id"], done["output_index"]) == (added["id"], 2)


def test_the_official_client_puts_a_stream_together():
    with (
        serving(says(TURN)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        with client.responses.stream(model="toy", input="hi", tools=[{**FUNCTION, "strict": True}]) as events:
            texts = [event.delta for event in events if event.type == "response.output_text.delta"]
            final = events.get_final_response()
        assert ("".join(texts), final.output_text) == ("Sure.", "Sure.")
        assert final.output[2].parsed_arguments == {"a": 1}
        stored = client.responses.retrieve(final.id)
        assert [item.id for item in stored.output] == [item.id for item in final.output]
        assert stored.usage == final.usage


def test_a_stream_that_is_cut_short_is_incomplete():
    with serving(says("abcdef")) as server:
        events = stream(server, max_output_tokens=3)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-2]["item"]["status"] == "incomplete"


def test_an_empty_answer_is_an_empty_message():
    with serving(says("")) as server:
        events = stream(server)
        assert [event["type"] for event in events if "delta" in event["type"]] == []
        (item,) = events[-1]["response"]["output"]
        assert item["content"][0]["text"] == ""


def slow(**settings):
    return serving(says("ab", ends=False), **settings)


def begun(lines):
    """Read a stream up to its first text; return the response's id."""
    name = next(line for line in lines if line.startswith("data:")).split('"id":"')[1].split('"')[0]
    next(line for line in lines if "output_text.delta" in line)
    return name


def test_a_failure_is_an_error_event_and_a_failed_response():
    with slow() as server:
        server.engine.step_s = 0.01
        with server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
            text = ""
            for chunk in answer.iter_text():
                if "output_text.delta" in chunk and "output_text.delta" not in text:
                    server.call(lambda: server.engine.end_all("error", "Engine failed", "engine_error"))
                text += chunk
        *_, error, failed = events_of(text)
        assert (error["type"], error["code"], error["message"]) == ("error", "engine_error", "Engine failed")
        assert error["error"]["type"] == "server_error"
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"] == {"code": "server_error", "message": "Engine failed"}
        (item,) = failed["response"]["output"]
        assert item["status"] == "incomplete"
        stored = server.http.get(f"{PATH}/{failed['response']['id']}").json()
        assert stored == failed["response"]
        refused = post(server, 400, previous_response_id=stored["id"])["error"]
        assert (refused["param"], refused["code"]) == (
            "previous_response_id", "previous_response_not_completed",
        )  # fmt: skip


def test_a_failure_is_an_exception_of_the_official_client():
    with (
        slow(request_timeout_s=0.2) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        server.engine.step_s = 0.01
        with pytest.raises(openai.APIError, match="took longer") as caught:
            list(client.responses.create(model="toy", input="hi", stream=True))
        assert caught.value.code == "timeout"


def test_a_client_that_leaves_a_stream_cancels_the_response():
    with slow() as server:
        server.engine.step_s = 0.01
        with server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
            lines = answer.iter_lines()  # kept: the client closes what it no longer reads
            name = begun(lines)
            assert server.http.get(f"{PATH}/{name}").json()["status"] == "in_progress"
        wait_until(lambda: server.engine.num_running == 0, 1)
        assert list(server.engine.aborted.values()) == ["disconnect"]
        wait_until(lambda: server.http.get(f"{PATH}/{name}").json()["status"] == "cancelled", 1)
        stored = server.http.get(f"{PATH}/{name}").json()
        assert stored["output"][0]["status"] == "incomplete"
        assert stored["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_stream_can_be_ended_by_its_id(how):
    with slow() as server:
        server.engine.step_s = 0.01
        with server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
            lines = answer.iter_lines()
            name = begun(lines)
            if how == "cancel":
                ended = server.http.post(f"{PATH}/{name}/cancel").json()
                assert (ended["status"], ended["id"]) == ("cancelled", name)
            else:
                assert server.http.delete(f"{PATH}/{name}").json()["deleted"] is True
            rest = list(lines)
        assert [line for line in rest if line][-3].startswith("event: error")
        assert '"code":"cancelled"' in [line for line in rest if line][-2]
        status = server.http.get(f"{PATH}/{name}").status_code
        assert status == (200 if how == "cancel" else 404)
        assert list(server.engine.aborted.values()) == ["cancelled"]


def test_a_response_that_is_cancelled_behind_its_last_token_is_not_completed():
    with slow() as server:
        server.engine.step_s = 0.01
        tenant = tenant_of(key_digest(Headers(), KeyRing()), None)

        def end():
            server.engine.end_all("stop", "")
            return server.context.response_desk.cancel(tenant, name)["status"]

        with server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
            lines = answer.iter_lines()
            name = begun(lines)
            assert server.call(end) == "cancelled"
            rest = [line for line in lines if line]
        assert (rest[-3], rest[-1]) == ("event: error", "data: [DONE]")
        assert server.http.get(f"{PATH}/{name}").json()["status"] == "cancelled"


def test_a_response_is_made_in_the_background():
    with serving(says("so")) as server:
        server.engine.step_s = 0.05
        server.engine.admits = False
        asked = time.monotonic()
        queued = post(server, background=True)
        assert time.monotonic() - asked < 0.1
        assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
        wait_until(lambda: server.http.get(f"{PATH}/{queued['id']}").json()["status"] == "in_progress", 1)
        wait_until(lambda: server.http.get(f"{PATH}/{queued['id']}").json()["status"] == "completed", 2)
        ended = server.http.get(f"{PATH}/{queued['id']}").json()
        assert ended["output"][0]["content"][0]["text"] == "so"
        assert post(server, previous_response_id=queued["id"])["status"] == "completed"


@pytest.mark.parametrize("how", ["cancel", "delete", "fault"])
def test_a_response_in_the_background_can_end_early(how):
    with slow() as server:
        server.engine.step_s = 0.01
        name = post(server, background=True)["id"]
        path = f"{PATH}/{name}"
        wait_until(lambda: server.engine.num_running == 1)
        refused = post(server, 400, previous_response_id=name)["error"]
        assert refused["code"] == "previous_response_not_completed"
        if how == "cancel":
            assert server.http.post(f"{path}/cancel").json()["status"] == "cancelled"
            assert server.http.post(f"{path}/cancel").json()["status"] == "cancelled"
        elif how == "delete":
            assert server.http.delete(path).status_code == 200
        else:
            server.call(lambda: server.engine.end_all("shutdown", "going down"))
            wait_until(lambda: server.http.get(path).json()["status"] == "failed", 1)
            assert server.http.get(path).json()["error"]["message"] == "going down"
        wait_until(lambda: server.engine.num_running == 0, 1)
        time.sleep(0.05)
        assert server.http.get(path).status_code == (404 if how == "delete" else 200)


def test_a_request_that_is_refused_by_the_queue_leaves_nothing():
    with serving(says("x")) as server:
        server.engine.max_requests = 0
        for body in ({}, {"stream": True}, {"background": True}):
            answer = server.http.post(PATH, json={"input": "hi", **body})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert len(server.context.response_store) == 0
