"""A served model as its users meet it: the official client, dropped streams, scrapes under load."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from toy_process import ServedProcess, metric, serve, served_model, wait_until_all_slots_are_free

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "4", "--threads", "1")
PROMPTS = [
    "Once upon a time",
    "To be, or not to be",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 4,
]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve(served_model(), *FLAGS) as process:
        yield process


@pytest.fixture
def client(served: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_streamed_and_whole_answers_are_the_same_text(client: openai.OpenAI) -> None:
    for seed, prompt in enumerate(PROMPTS):
        asked = {"model": "toy-granite", "prompt": prompt, "max_tokens": 40, "seed": seed, "n": 2}
        whole = client.completions.create(**asked)
        texts, reasons = ["", ""], [None, None]
        for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            usage = chunk.usage
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert usage == whole.usage


def test_a_seed_gives_the_same_answer_alone_and_in_company(served: ServedProcess) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:

            async def ask(index: int) -> str:
                answer = await client.completions.create(
                    model="toy-granite", prompt=PROMPTS[index % 4], max_tokens=30, seed=index
                )
                return answer.choices[0].text

            alone = [await ask(index) for index in range(8)]
            together = await asyncio.gather(*(ask(index % 8) for index in range(32)))
            assert together == alone * 4

    asyncio.run(run())


def test_echo_with_logprobs_scores_every_token_of_the_prompt(client: openai.OpenAI) -> None:
    prompt = "Once upon a time, " * 10
    whole = client.completions.create(model="toy-granite", prompt=prompt, max_tokens=0, echo=True, logprobs=2)
    choice = whole.choices[0]
    assert choice.text == prompt
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == len(prompt)
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == list(range(len(prompt)))
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 0


def test_two_hundred_dropped_streams_leave_every_slot_free(served: ServedProcess) -> None:
    async def drop(client: httpx.AsyncClient, index: int) -> None:
        body = {"prompt": PROMPTS[index % 4], "max_tokens": 1500, "stream": True, "n": 1 + index % 3}
        async with client.stream("POST", f"{served.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            if index % 4:
                async for _ in response.aiter_bytes():
                    break

    async def run() -> None:
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            await asyncio.gather(*(drop(client, index) for index in range(200)))

    asyncio.run(run())
    wait_until_all_slots_are_free(served.url)
    answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "hi", "max_tokens": 3}, timeout=10)
    assert answer.status_code == 200
    wait_until_all_slots_are_free(served.url)


def test_slots_and_blocks_add_up_in_every_scrape_under_load(served: ServedProcess) -> None:
    done = threading.Event()
    scrapes: list[str] = []

    def scrape() -> None:
        with httpx.Client() as client:
            while not done.is_set():
                scrapes.append(client.get(f"{served.url}/metrics").text)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        with httpx.Client(timeout=60) as client:
            deadline = time.monotonic() + 30
            while len(scrapes) < 20 or not any(metric(t, "mambad_requests_running") for t in scrapes):
                assert time.monotonic() < deadline, "no scrape saw the load"
                body = {"prompt": PROMPTS[:3], "max_tokens": 120, "n": 2}
                assert client.post(f"{served.url}/v1/completions", json=body).status_code == 200
    finally:
        done.set()
        scraper.join()
    for text in scrapes:
        assert metric(text, "mambad_state_slots") == metric(text, "mambad_state_slot_capacity") == 4
        assert metric(text, "mambad_kv_blocks") == metric(text, "mambad_kv_block_capacity")
    assert any(metric(text, "mambad_state_slots", state="active") > 0 for text in scrapes)
    assert metric(scrapes[-1], "mambad_state_slots_leaked_total") == 0


def test_the_founding_reproduction_over_http() -> None:
    """vLLM #14820: 10, 110 and 10 tokens, 128 at most, 2 sequences; ends at the maximum length."""
    for flags in (["--async-scheduling"], ["--no-async-scheduling"]):
        with serve(
            served_model(), "--load-format", "dummy", "--max-model-len", "128", "--max-num-seqs", "2",
            "--max-num-batched-tokens", "64", *flags,
        ) as process:  # fmt: skip
            body = {"prompt": [[5] * 10, [6] * 110, [7] * 10], "max_tokens": 100, "ignore_eos": True}
            answer = httpx.post(f"{process.url}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200
            assert answer.json()["usage"]["completion_tokens"] == 100 + 18 + 100
            assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
            wait_until_all_slots_are_free(process.url)


def test_streams_and_health_go_on_while_huge_prompts_arrive(served: ServedProcess) -> None:
    """20 prompts of 8 MiB less the JSON around them, as text and as ids: too long, each gets its 400."""
    words = json.dumps({"prompt": "word " * ((8 * 2**20 - 100) // 5), "max_tokens": 1}).encode()
    ids = b'{"max_tokens": 1, "prompt": [' + b"7," * (4 * 2**20 - 100) + b"7]}"
    answers: list[httpx.Response] = []

    def upload(body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        with httpx.Client(timeout=120) as client:
            url = f"{served.url}/v1/completions"
            answers.extend(client.post(url, content=body, headers=headers) for _ in range(5))

    uploads = [threading.Thread(target=upload, args=(body,)) for body in (words, ids, words, ids)]
    for thread in uploads:
        thread.start()
    gaps, health_s = [], []
    with httpx.Client(timeout=60) as client:
        while any(thread.is_alive() for thread in uploads):
            body = {"prompt": "hello", "max_tokens": 50, "stream": True, "ignore_eos": True}
            last = time.monotonic()
            with client.stream("POST", f"{served.url}/v1/completions", json=body) as stream:
                for _ in stream.iter_lines():
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()
            assert client.get(f"{served.url}/health").status_code == 200
            health_s.append(time.monotonic() - last)
    for thread in uploads:
        thread.join()
    print(f"longest gap {max(gaps):.3f} s, slowest health {max(health_s):.3f} s of {len(health_s)}")
    assert len(answers) == 20
    assert {answer.status_code for answer in answers} == {400}
    assert {answer.json()["error"]["code"] for answer in answers} == {"context_length_exceeded"}
    assert len(health_s) >= 2
