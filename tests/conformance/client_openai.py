"""The official Python client: models, completions, errors, many at once. Runs with versions 2 and 3 of it."""

import asyncio
import sys

import openai
from client_cases import Cases, arguments, raises, same
from client_openai_chat import CASES as CHAT_CASES
from client_openai_responses import CASES as RESPONSES_CASES

case = Cases()
MODEL = "demo"
PROMPT = "Now is the winter"
GREEDY = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 24}


@case
def models_are_listed_and_described(client):
    same([model.id for model in client.models.list()], [MODEL])
    card = client.models.retrieve(MODEL)
    same((card.id, card.object), (MODEL, "model"))
    raises(openai.NotFoundError, lambda: client.models.retrieve("other"))


@case
def a_completion_has_text_and_usage(client):
    answer = client.completions.create(**GREEDY)
    (choice,) = answer.choices
    assert choice.text
    same(choice.finish_reason, "length")
    same(answer.usage.completion_tokens, 24)
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + 24)
    assert answer.id.startswith("cmpl-")
    assert answer.system_fingerprint


@case
def a_stream_is_the_whole_answer_in_pieces(client):
    whole = client.completions.create(**GREEDY)
    chunks = list(client.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    same("".join(choice.text for chunk in chunks for choice in chunk.choices), whole.choices[0].text)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    same(reasons, ["length"])
    same(chunks[-1].choices, [])
    same(chunks[-1].usage, whole.usage)
    same({chunk.usage for chunk in chunks[:-1]}, {None})


@case
def a_long_answer_comes_in_many_chunks(client):
    # What has been made meanwhile comes in one: a short answer may be a single chunk.
    ignored = {"ignore_eos": True}
    chunks = list(client.completions.create(**GREEDY | {"max_tokens": 2000}, stream=True, extra_body=ignored))
    assert len(chunks) > 2


@case
def several_prompts_and_choices_keep_their_order(client):
    answer = client.completions.create(
        model=MODEL, prompt=[PROMPT, "O, that this"], n=2, max_tokens=8, temperature=0
    )
    same([choice.index for choice in answer.choices], [0, 1, 2, 3])
    first, second, third, fourth = (choice.text for choice in answer.choices)
    assert first == second != third == fourth


@case
def a_stop_string_ends_the_text_before_it(client):
    text = client.completions.create(**GREEDY).choices[0].text
    stop = text[5:9]
    for is_stream in (False, True):
        answer = client.completions.create(**GREEDY, stop=stop, stream=is_stream)
        choices = [choice for chunk in answer for choice in chunk.choices] if is_stream else answer.choices
        same("".join(choice.text for choice in choices), text[: text.index(stop)])
        same(choices[-1].finish_reason, "stop")


@case
def log_probabilities_belong_to_the_text(client):
    (choice,) = client.completions.create(**GREEDY, logprobs=3).choices
    logprobs = choice.logprobs
    same("".join(logprobs.tokens), choice.text)
    assert all(max(top.values()) == value for top, value in zip(
        logprobs.top_logprobs, logprobs.token_logprobs, strict=True
    ))  # fmt: skip
    same(logprobs.text_offset[0], 0)


@case
def a_prompt_is_scored_without_generating(client):
    asked = {"model": MODEL, "prompt": PROMPT, "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = client.completions.create(**asked)
    (choice,) = answer.choices
    same(choice.text, PROMPT)
    same(choice.logprobs.token_logprobs[0], None)
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    same(answer.usage.completion_tokens, 0)


@case
def token_ids_are_taken_and_returned(client):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8, "extra_body": {"return_token_ids": True}}
    by_text = client.completions.create(prompt=PROMPT, **asked).choices[0]
    by_ids = client.completions.create(prompt=by_text.prompt_token_ids, **asked).choices[0]
    same((by_ids.text, by_ids.token_ids), (by_text.text, by_text.token_ids))


@case
def a_seed_repeats_itself(client):
    def text(seed):
        asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 1, "seed": seed}
        return client.completions.create(**asked).choices[0].text

    same(text(1), text(1))
    assert len({text(seed) for seed in range(4)}) > 1


@case
def extensions_go_through_extra_body(client):
    extra = {"structured_outputs": {"regex": "[0-9]{4}"}, "top_k": 50, "min_p": 0.01, "ignore_eos": False}
    text = (
        client.completions.create(model=MODEL, prompt="In ", max_tokens=16, extra_body=extra).choices[0].text
    )
    assert len(text) == 4
    assert text.isdigit()


@case
def errors_are_the_exceptions_that_they_mean(client):
    error = raises(openai.BadRequestError, lambda: client.completions.create(**GREEDY, top_p=0))
    same(error.param, "top_p")
    assert error.request_id
    long = GREEDY | {"prompt": "x " * 30_000}
    error = raises(openai.BadRequestError, lambda: client.completions.create(**long, stream=True))
    same((error.code, error.param), ("context_length_exceeded", "prompt"))
    other = GREEDY | {"model": "other"}
    error = raises(openai.NotFoundError, lambda: client.completions.create(**other))
    same(error.code, "model_not_found")
    stranger = client.with_options(api_key="wrong")
    error = raises(openai.AuthenticationError, lambda: stranger.completions.create(**GREEDY))
    same(error.code, "invalid_api_key")
    missing = {"model": MODEL, "input": "x"}
    error = raises(openai.NotFoundError, lambda: client.embeddings.create(**missing))
    same(error.type, "invalid_request_error")


@case
def raw_answers_have_headers(client):
    raw = client.completions.with_raw_response.create(**GREEDY, extra_headers={"X-Request-Id": "mine-1"})
    same(raw.headers["x-request-id"], "mine-1")
    same(raw.parse().choices[0].finish_reason, "length")


@case
def a_stream_may_be_left(client):
    stream = client.completions.create(**GREEDY | {"max_tokens": 1000}, stream=True)
    next(iter(stream))
    stream.close()
    assert client.completions.create(**GREEDY).choices


@case
def sixteen_at_once_get_what_one_alone_gets(client):
    alone = client.completions.create(**GREEDY, logprobs=2).choices[0]

    async def one(asynchronous, number):
        if number % 2:
            return (await asynchronous.completions.create(**GREEDY, logprobs=2)).choices[0].text
        stream = await asynchronous.completions.create(**GREEDY, logprobs=2, stream=True)
        return "".join([choice.text async for chunk in stream for choice in chunk.choices])

    async def all_of_them():
        options = {"base_url": client.base_url, "api_key": client.api_key, "max_retries": 0}
        async with openai.AsyncOpenAI(**options) as asynchronous:
            return await asyncio.gather(*(one(asynchronous, number) for number in range(16)))

    same(set(asyncio.run(all_of_them())), {alone.text})


def main() -> int:
    url, key = arguments()
    for other in (*CHAT_CASES, *RESPONSES_CASES):
        case(other)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        return case.run(client, ["openai"])


if __name__ == "__main__":
    sys.exit(main())
