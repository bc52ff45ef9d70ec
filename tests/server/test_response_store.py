"""What is kept of responses: bounded in number, bytes and time, and each tenant's own."""

import pytest
from toy_responses import post, serving
from toy_server import says

from mambad.server.response_store import MemoryStore, StoredResponse, packed_ids, unpacked_ids


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def record(name, tenant="t", num_bytes=10):
    item = {"id": f"msg_{name}", "type": "message"}
    return StoredResponse(id=name, tenant=tenant, body={"output": [item]}, num_bytes=num_bytes)


def names(store, tenant="t"):
    return [name for name in "abcdef" if store.get(tenant, name) is not None]


def test_the_oldest_make_room_for_new_ones():
    store = MemoryStore(3, 100, 10.0, Clock())
    for name in "abc":
        store.put(record(name))
    store.put(record("a"))  # the newest now
    store.put(record("d"))
    assert names(store) == ["a", "c", "d"]
    assert store.find_item("t", "msg_b") is None
    assert store.find_item("t", "msg_c") == {"id": "msg_c", "type": "message"}
    assert (len(store), store.num_bytes) == (3, 30)


def test_bytes_are_bounded_too():
    store = MemoryStore(100, 100, 10.0, Clock())
    for name in "abc":
        store.put(record(name, num_bytes=40))
    assert (names(store), store.num_bytes) == (["b", "c"], 80)
    store.put(record("d", num_bytes=101))
    assert (names(store), store.num_bytes, len(store)) == ([], 0, 0)


def test_a_record_is_forgotten_some_time_after_it_was_last_put():
    clock = Clock()
    store = MemoryStore(100, 100, 10.0, clock)
    store.put(record("a"))
    clock.now_s = 6.0
    store.put(record("b"))
    store.put(record("a"))
    clock.now_s = 15.9
    assert names(store) == ["a", "b"]
    clock.now_s = 16.0
    assert store.find_item("t", "msg_a") is None
    assert (names(store), store.num_bytes, len(store)) == ([], 0, 0)


def test_nobody_sees_or_deletes_what_another_tenant_has():
    store = MemoryStore(100, 100, 10.0, Clock())
    store.put(record("a"))
    assert store.get("u", "a") is None
    assert store.find_item("u", "msg_a") is None
    assert not store.delete("u", "a")
    assert store.delete("t", "a")
    assert not store.delete("t", "a")


def test_ids_come_back_as_they_were():
    ids = [0, 1, 2**31, 2**32 - 1]
    assert len(packed_ids(ids)) == 16
    assert unpacked_ids(packed_ids(ids)) == ids


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_tenant_is_a_key_and_a_salt(method):
    one, other = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}
    with serving(says("x"), api_keys=("one", "other")) as server:
        server.http.headers.update(one)
        plain, salted = post(server), post(server, cache_salt="s")
        ask = getattr(server.http, method)
        for response, headers, salt in (
            (plain, other, None), (plain, one, "s"),
            (salted, one, None), (salted, one, "x"), (salted, other, "s"),
        ):  # fmt: skip
            path = f"/v1/responses/{response['id']}"
            params = {} if salt is None else {"cache_salt": salt}
            assert ask(path, headers=headers, params=params).status_code == 404
            body = {"input": "x", "previous_response_id": response["id"], "cache_salt": salt}
            answer = server.http.post("/v1/responses", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                404,
                "previous_response_not_found",
            )
        assert post(server, previous_response_id=salted["id"], cache_salt="s")["status"] == "completed"
        assert ask(f"/v1/responses/{plain['id']}").status_code == 200
        assert ask(f"/v1/responses/{salted['id']}", params={"cache_salt": "s"}).status_code == 200


def test_without_keys_what_a_client_sends_as_one_tells_nothing_apart():
    with serving(says("x")) as server:
        response = server.http.post(
            "/v1/responses", json={"input": "hi"}, headers={"authorization": "Bearer a"}
        ).json()
        path = f"/v1/responses/{response['id']}"
        assert server.http.get(path, headers={"authorization": "Bearer b"}).status_code == 200


def test_the_server_keeps_no_more_than_it_is_told():
    with serving(says("x"), max_responses=2) as server:
        ids = [post(server)["id"] for _ in range(3)]
        statuses = [server.http.get(f"/v1/responses/{name}").status_code for name in ids]
    assert statuses == [404, 200, 200]
