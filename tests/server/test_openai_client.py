"""The official client against a real server."""

import asyncio

import openai
import pytest
from toy_server import FakeEngine, run_server, says, wait_until


@pytest.fixture(scope="module")
def client():
    engine = FakeEngine(says("Hé 😀!\nbye"))
    with (
        run_server(engine, api_keys=("key",)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


def test_the_official_client_lists_and_retrieves_models(client):
    assert [model.id for model in client.models.list()] == ["toy", "org/toy"]
    assert client.models.retrieve("org/toy").owned_by == "mambad"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id


def test_the_official_client_gets_the_same_whole_and_streamed(client):
    whole = client.completions.create(
        model="toy", prompt="p", max_tokens=50, stop="\n", logprobs=2, echo=True
    )
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == ("pHé 😀!", "stop")
    assert "".join(choice.logprobs.tokens) == "pHé 😀!\n"
    stream = client.completions.create(
        model="toy", prompt="p", max_tokens=50, stop="\n", logprobs=2, echo=True, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == choice.text
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_official_client_raises_what_the_status_means(client):
    def code_of(kind, **body):
        with pytest.raises(kind) as caught:
            client.completions.create(**{"model": "toy", "prompt": "p", **body})
        return caught.value.code

    assert code_of(openai.BadRequestError, temperature=3) == "invalid_value"
    assert code_of(openai.BadRequestError, prompt="x" * 300) == "context_length_exceeded"
    assert code_of(openai.NotFoundError, model="other") == "model_not_found"
    assert code_of(openai.BadRequestError, extra_body={"guided_json": {}}) == "unsupported_parameter"
    wrong = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def test_the_official_client_raises_when_a_stream_breaks():
    engine = FakeEngine(says("ab", ends=False), step_s=0.02)
    with run_server(engine) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        stream = client.completions.create(model="toy", prompt="p", max_tokens=200, stream=True)
        next(iter(stream))
        server.call(engine.die)
        with pytest.raises(openai.APIError, match="ended with code"):
            list(stream)


def test_the_async_client_leaves_a_stream_and_the_engine_stops():
    engine = FakeEngine(says("ab", ends=False), step_s=0.02)

    async def leave(url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            stream = await client.completions.create(model="toy", prompt="p", max_tokens=200, stream=True)
            async for _ in stream:
                break
            await stream.close()

    with run_server(engine) as server:
        asyncio.run(leave(server.url))
        wait_until(lambda: engine.num_running == 0, 1)
        assert list(engine.aborted.values()) == ["disconnect"]
