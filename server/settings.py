"""What the HTTP application is told at start-up: one frozen value, made by the command line.

Holds only what `server` itself acts on. What the engine decides (context length, vocabulary, dtype) is read
from `engine.info` once it is ready.
"""

from dataclasses import dataclass


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
        max_logprobs: most alternatives a request may ask for at a position.
        request_timeout_s: longest a request may take in all; None = for ever.
        stall_timeout_s: longest a reader of a stream may take nothing; None = for ever.
        sse_keep_alive_s: a silent stream gets a comment this often; 0 = never.
        strict_request_fields: refuse fields that nobody knows instead of ignoring them.
        scheduling_policy: `fcfs`, or `priority`, under which a request's `priority` counts.
        enable_fault_injection: whether `/debug/faults` exists.
        metrics_compat: `vllm` also exports series under vLLM's names; `none` does not.
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
    max_logprobs: int = 20
    request_timeout_s: float | None = None
    stall_timeout_s: float | None = 60.0
    sse_keep_alive_s: float = 15.0
    strict_request_fields: bool = False
    scheduling_policy: str = "fcfs"
    metrics_compat: str = "vllm"
    enable_fault_injection: bool = False

    @property
    def model_name(self) -> str:
        """The name that stands in answers and metrics."""
        return self.served_model_names[0]
