"""Every check: its name, what it tries, and the function that runs it, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass

from check_clients import node_client, python_client
from check_fuzz import fuzz
from check_lm_eval import lm_eval
from check_load import aiperf, guidellm
from check_nginx import nginx
from check_promtool import promtool
from check_schemathesis import schemathesis
from outcome import Bench, Outcome


@dataclass(frozen=True)
class Check:
    """One client.

    Attributes:
        name: for `--only`, and the row of the table.
        tries: what it does, and what its cases are.
        run: runs it.
    """

    name: str
    tries: str
    run: Callable[[Bench], Outcome]


_OPENAI = "models, completions, scoring, chats, streams, tools, schemas, Responses, errors, 16 at once"
CHECKS = (
    Check("openai-3", _OPENAI, python_client("openai", "client_openai.py", "demo")),
    Check("openai-2", _OPENAI, python_client("openai-2", "client_openai.py", "demo")),
    Check("openai-npm", "the same in JavaScript", node_client),
    Check("schemathesis", "requests made from `/openapi.json`, all checks", schemathesis),
    Check("lm-eval", "log-likelihoods equal to Transformers' to 1e-4, remote tokenizer", lm_eval),
    Check(
        "langchain", "chats, batches, streams, tools, structured output, Responses, text",
        python_client("langchain", "client_langchain.py", "tools"),
    ),
    Check(
        "litellm", "chats, streams, tools, schemas, text, 8 at once, the exceptions of routers",
        python_client("litellm", "client_litellm.py", "demo"),
    ),
    Check(
        "instructor", "classes out of tools and schemas, whole and growing",
        python_client("instructor", "client_instructor.py", "tools"),
    ),
    Check(
        "pydantic-ai", "agents: text, classes by tool and natively, streamed, Responses",
        python_client("pydantic-ai", "client_pydantic_ai.py", "tools"),
    ),
    Check("promtool", "`check metrics` on mambad's own families", promtool),
    Check("nginx", "default buffering in front: same answers, streams still stream", nginx),
    Check("guidellm", "requests of synthetic text, streamed, at concurrency 2", guidellm),
    Check("aiperf", "requests to completions and chats, streamed, at concurrency 2", aiperf),
    Check("fuzz", "type-confused requests: no 5xx, no hang, the fixed answer unchanged", fuzz),
)  # fmt: skip
