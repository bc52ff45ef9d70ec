"""lm-eval: log-likelihoods asked for over HTTP, with the server's tokenizer, beside those of Transformers.

The harness only knows the URL. Its samples are then computed again from the checkpoint: every log-likelihood
must be the same to `TOLERANCE`, and every "is greedy" must be the same.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from outcome import HERE, Bench, Outcome, tail
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

TASKS = "conformance_cloze,conformance_rolling"
TOLERANCE = 1e-4
MIN_SAMPLES = 20


def lm_eval(bench: Bench) -> Outcome:
    """Run it; the cases are log-likelihoods."""
    program = bench.environments.program("lm-eval", "lm-eval")
    version = _version(bench, program.with_name("python"))
    url, output = bench.servers.url("mamba"), bench.folder / "lm-eval-output"
    shutil.rmtree(output, ignore_errors=True)
    model = (
        f"model=mamba,base_url={url}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1"
    )
    command = [
        program, "run", "--model", "local-completions", "--model_args", model, "--tasks", TASKS,
        "--include_path", HERE / "lm_eval", "--output_path", output, "--log_samples",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(bench.folder / "hf")}
    code, text = bench.run("lm-eval", command, cwd=HERE / "lm_eval", environment=offline)
    if code:
        return Outcome(version, 0, (tail(code, text),))
    samples = list(_samples(output))
    oracle = Oracle(bench.servers.mamba_folder())
    wrong, largest = [], 0.0
    for arguments, value, is_greedy in samples:
        expected, expected_greedy = oracle.log_likelihood(*arguments)
        difference = abs(value - expected)
        largest = max(largest, difference)
        if not difference <= TOLERANCE or is_greedy not in (None, expected_greedy):
            wrong.append(f"{arguments}: {value}, {is_greedy}; Transformers: {expected}, {expected_greedy}")
    if len(samples) < MIN_SAMPLES:
        wrong.append(f"only {len(samples)} samples were found in {output}")
    return Outcome(version, len(samples), tuple(wrong), f"largest difference {largest:.1e}")


class Oracle:
    """The same checkpoint in Transformers.

    Args:
        folder: the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._eos_id = self._model.config.eos_token_id

    def log_likelihood(self, context: str | None, text: str) -> tuple[float, bool]:
        """Return the log-likelihood of a text after its context, and whether it is the greedy one.

        Args:
            context: what stands before it; None: the beginning of a document.
            text: whose tokens count.
        """
        before = [self._eos_id] if context is None else self._tokenizer.encode(context).ids
        ids = [*before, *self._tokenizer.encode(text).ids]
        with torch.no_grad():
            logits = self._model(torch.tensor([ids]), use_cache=False).logits[0]
        predicted = torch.log_softmax(logits[len(before) - 1 : -1], dim=-1)
        expected = torch.tensor(ids[len(before) :])
        chosen = predicted.gather(1, expected[:, None])
        return float(chosen.double().sum()), bool((predicted.argmax(-1) == expected).all())


def _samples(folder: Path) -> Iterator[tuple[tuple[str | None, str], float, bool | None]]:
    """Yield the arguments, the log-likelihood and "is greedy" (None: not told) of every request."""
    for path in sorted(folder.rglob("samples_*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            for arguments, answers in zip(sample["arguments"].values(), sample["resps"], strict=True):
                answer = answers[0]
                if "arg_1" in arguments:
                    value, is_greedy = answer
                    yield (arguments["arg_0"], arguments["arg_1"]), float(value), str(is_greedy) == "True"
                else:
                    yield (None, arguments["arg_0"]), float(answer), None


def _version(bench: Bench, python: Path) -> str:
    code = "from importlib.metadata import version; print('lm-eval', version('lm-eval'))"
    return bench.run("lm-eval-version", [python, "-c", code])[1].strip()
