"""What the HTTP application is told at start-up: one frozen value, made by the command line.

Holds only what `server` itself acts on. What the engine decides (context length, vocabulary, dtype) is read
from `engine.info` once it is ready.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What counts where a request says nothing; see `generation_config`.

    Attributes:
        max_new_tokens: most tokens that any request may generate; None = as many as it asks for.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """Settings of the HTTP side.

    Attributes:
        served_model_names: names that requests may use; the first stands in answers and metrics.
        max_body_bytes: largest request body.
        api_keys: keys of which a request must carry one; none = no key is asked for.
        admin_api_keys: keys for the admin paths; none = those answer on a loopback bind only.
        protect_metrics: ask for a key at `/metrics` too.
        allowed_origins: origins of web pages that may call; `*` is any.
        allowed_hosts: values of `Host` that are answered; `*` is any.
        is_loopback: whether the server is bound to a loopback address or a Unix socket.
        root_path: path under which a reverse proxy shows the server.
        default_completion_tokens: `max_tokens` of a completion that names none.
        sampling_defaults: what counts where a request names no temperature, top_p and so on.
        default_chat_tokens: most tokens of a chat's answer whose request names no limit.
        tool_call_parser, reasoning_parser: dialects of the model's text; `auto` asks the chat template.
        trust_request_chat_template: whether a request may bring a template of its own.
        max_responses, max_response_bytes: most responses that are kept for later requests, and most bytes.
        response_ttl_s: how long each of them is kept.
        max_logprobs: most alternatives a request may ask for at a position.
        request_timeout_s: longest a request may take in all; None = for ever.
        stall_timeout_s: longest a reader of a stream may take nothing; None = for ever.
        sse_keep_alive_s: a silent stream gets a comment this often; 0 = never.
        strict_request_fields: refuse fields that nobody knows instead of ignoring them.
        scheduling_policy: `fcfs`, or `priority`, under which a request's `priority` counts.
        enable_fault_injection: whether `/debug/faults` exists.
        docs: whether `/docs` and `/openapi.json` exist.
        console: whether `/` is the console.
        metrics_compat: `vllm` also exports series under vLLM's names; `none` does not.
        log_prompts: whether prompts are recorded.
    """

    served_model_names: tuple[str, ...]
    max_body_bytes: int = 8 * 2**20
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    is_loopback: bool = True
    root_path: str = ""
    default_completion_tokens: int = 16
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    default_chat_tokens: int = 4096
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    trust_request_chat_template: bool = False
    max_responses: int = 10_000
    max_response_bytes: int = 256 * 2**20
    response_ttl_s: float = 24 * 3600.0
    max_logprobs: int = 20
    request_timeout_s: float | None = None
    stall_timeout_s: float | None = 60.0
    sse_keep_alive_s: float = 15.0
    strict_request_fields: bool = False
    scheduling_policy: str = "fcfs"
    docs: bool = True
    console: bool = True
    metrics_compat: str = "vllm"
    log_prompts: bool = False
    enable_fault_injection: bool = False

    @property
    def model_name(self) -> str:
        """The name that stands in answers and metrics."""
        return self.served_model_names[0]
