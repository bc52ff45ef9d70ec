"""`mambad serve --quantization`: answers, equality and what the server says about itself, over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from toy_process import serve, served_model

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
PROMPTS = [
    "To be, or not to be",
    "KING HENRY:",
    "x",
    "Now sits the wind within the shoulder of our sail, " * 4,
]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("model", ["demo", "mamba"])
def test_a_quantized_model_answers_the_same_alone_and_in_company(model: str, quantization: str) -> None:
    source = (DEMO, ()) if model == "demo" else (served_model("mamba"), ("--load-format", "dummy"))
    with (
        serve(source[0], *source[1], "--quantization", quantization, "--threads", "1") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):

        def ask(index: int) -> str:
            body = {"prompt": PROMPTS[index % 4], "max_tokens": 20, "seed": index}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            text: str = answer.json()["choices"][0]["text"]
            return text

        alone = [ask(index) for index in range(4)]
        with ThreadPoolExecutor(8) as executor:
            together = list(executor.map(ask, [index % 4 for index in range(16)]))
        assert together == alone * 4
        assert any(alone)
        info = next(
            line
            for line in client.get("/metrics").text.splitlines()
            if line.startswith("mambad_engine_info{")
        )
        assert f'quantization="{quantization}"' in info
    assert any(f"linear weights {quantization} in groups of" in line for line in process.lines)
