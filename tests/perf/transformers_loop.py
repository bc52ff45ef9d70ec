"""Transformers' `generate` as a peer: `transformers_loop.py FOLDER DTYPE THREADS`, orders on standard input.

An order is a line of JSON, {"batch", "input_tokens", "output_tokens"}; the answer is one too, with the
seconds from the start at which each step's tokens were there.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, logging

logging.set_verbosity_error()
folder, dtype, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


class Clock(StoppingCriteria):
    """Notes when each step has its tokens; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **options: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    count = order["output_tokens"]
    prompts = torch.randint(3, 250, (order["batch"], order["input_tokens"]))
    clock = Clock()
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompts, do_sample=False, min_new_tokens=count, max_new_tokens=count, stopping_criteria=[clock],
            attention_mask=torch.ones_like(prompts), pad_token_id=0,
        )  # fmt: skip
    print(json.dumps([moment - start for moment in clock.times]), flush=True)
