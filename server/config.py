"""All settings of the daemon, one row each.

`ServerConfig` is flat and frozen. Its fields are the table from which flags, environment variables, YAML keys
and `docs/configuration.md` are made. What start-up computes from it (slots, blocks, threads) is never written
back. Reading the sources is `mambad.server.config_sources`'s work.
"""

from dataclasses import dataclass

from mambad.server.flag import flag, flags_of
from mambad.server.flag_kinds import INTEGER, JSON, PATH, SECONDS, SIZE, SWITCH, TEXT, TOKENS

MIB, GIB = 2**20, 2**30

MODEL = "Model"
NETWORK = "Network and access"
MEMORY = "Memory, batching and threads"
LIMITS = "Queue and time limits"
REQUESTS = "Requests and answers"
LOGS = "Logs and metrics"

QUIET_ENDPOINTS = ("/live", "/ready", "/health", "/ping", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting with its default; None means that start-up computes it, or that there is none."""

    # fmt: off
    model: str = flag(
        "demo", TEXT, MODEL,
        "A folder in Hugging Face layout, a hub id, or `demo`, the small model that ships in the package. "
        "The same as the positional MODEL.",
    )
    served_model_name: tuple[str, ...] = flag(
        (), TEXT, MODEL, "Names that requests may use; the first one stands in answers and metrics.",
        is_list=True, default_text="`demo`, the hub id, or the folder's last part",
    )
    tokenizer: str | None = flag(
        None, PATH, MODEL, "Folder that holds `tokenizer.json`.", default_text="the model's folder"
    )
    revision: str | None = flag(
        None, TEXT, MODEL, "Branch, tag or commit of a hub id.", default_text="the hub's default branch"
    )
    download_dir: str | None = flag(
        None, PATH, MODEL, "Where hub downloads are kept.", default_text="the hub client's cache"
    )
    load_format: str = flag(
        "auto", TEXT, MODEL, "`dummy` fills the weights at random: for shape-only runs.",
        choices=("auto", "dummy"),
    )
    dtype: str = flag(
        "auto", TEXT, MODEL, "Type in which weights are kept; `auto` keeps the checkpoint's.",
        choices=("auto", "float32", "bfloat16"),
    )
    quantization: str = flag(
        "none", TEXT, MODEL,
        "Turn linear weights into integers at load: smaller and faster, slightly less exact.",
        choices=("none", "int8", "int4"),
    )
    mamba_ssm_cache_dtype: str = flag(
        "auto", TEXT, MODEL,
        "Type of the recurrent state; `auto` is float32. `bfloat16` halves its memory and is less exact.",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = flag("auto", TEXT, MODEL, "Where the model runs.", choices=("auto", "cpu"))
    seed: int = flag(
        0, INTEGER, MODEL, "Seed of random weights. A request's draws have a seed of their own.", minimum=0
    )

    host: str = flag("127.0.0.1", TEXT, NETWORK, "Address to listen on.")
    port: int = flag(
        8000, INTEGER, NETWORK, "Port to listen on; 0 takes any free one.", minimum=0, maximum=65535
    )
    uds: str | None = flag(
        None, PATH, NETWORK, "Listen on this Unix socket instead of a port.", default_text="none"
    )
    root_path: str = flag("", TEXT, NETWORK, "Path under which a reverse proxy shows the server.")
    api_key: tuple[str, ...] = flag(
        (), TEXT, NETWORK, "Keys of which a request must carry one as `Authorization: Bearer`.",
        is_list=True, is_secret=True, default_text="none",
    )
    api_key_file: str | None = flag(
        None, PATH, NETWORK, "File with such keys, one a line.", default_text="none"
    )
    admin_api_key: tuple[str, ...] = flag(
        (), TEXT, NETWORK,
        "Keys for `/state` and `/abort_requests`. Without one these answer on loopback and on the Unix "
        "socket only.",
        is_list=True, is_secret=True, default_text="none",
    )
    admin_api_key_file: str | None = flag(
        None, PATH, NETWORK, "File with such keys, one a line.", default_text="none"
    )
    ssl_certfile: str | None = flag(
        None, PATH, NETWORK, "Answer over TLS with this certificate (PEM).", default_text="none"
    )
    ssl_keyfile: str | None = flag(
        None, PATH, NETWORK, "The certificate's key.", default_text="in the certificate's file"
    )
    protect_metrics: bool = flag(False, SWITCH, NETWORK, "Ask for a key at `/metrics` too.")
    allowed_origins: tuple[str, ...] = flag(
        (), TEXT, NETWORK, "Origins of web pages that may call the server.", is_list=True, default_text="none"
    )
    allowed_hosts: tuple[str, ...] = flag(
        (), TEXT, NETWORK, "Values of `Host` that are answered.", is_list=True,
        default_text="any; local names only on loopback without a key",
    )
    max_body_bytes: int = flag(8 * MIB, SIZE, NETWORK, "Largest request body.", minimum=1024)

    max_model_len: int | None = flag(
        None, TOKENS, MEMORY,
        "Most tokens of prompt and answer together. Clamped to what memory holds for one request.",
        minimum=1, default_text="the config's, else 32768",
    )
    max_num_seqs: int = flag(64, INTEGER, MEMORY, "Most requests that run at once.", minimum=1)
    max_num_batched_tokens: int = flag(
        512, TOKENS, MEMORY, "Token budget of one step; at least one chunk (64 tokens).", minimum=1
    )
    num_state_slots: int | None = flag(
        None, INTEGER, MEMORY, "Slots for recurrent states. Clamped to what memory holds.", minimum=1,
        default_text="computed",
    )
    block_size: int = flag(16, INTEGER, MEMORY, "Tokens in a block of attention KV.", minimum=1, maximum=256)
    kv_cache_memory_bytes: int | None = flag(
        None, SIZE, MEMORY, "Memory for slots and blocks together.", minimum=1,
        default_text="a quarter of what is left after weights, at most 4 GiB",
    )
    state_cache_bytes: int = flag(
        GIB, SIZE, MEMORY, "Host memory for requests that are swapped out; 0 computes them again instead.",
        minimum=0,
    )
    scrub_slots: bool = flag(False, SWITCH, MEMORY, "Zero a slot's states when it becomes free.")
    threads: int | None = flag(
        None, INTEGER, MEMORY, "Threads that compute.", minimum=1, maximum=1024,
        default_text="`OMP_NUM_THREADS`, else what cgroup quota and affinity allow, at most 16",
    )
    enforce_eager: bool = flag(
        False, SWITCH, MEMORY, "Call the kernels one by one instead of capturing the decode step."
    )
    async_scheduling: bool | None = flag(
        None, SWITCH, MEMORY, "Schedule one step ahead of the one that is computed.", default_text="auto"
    )
    data_parallel_size: int = flag(
        1, INTEGER, MEMORY, "Engine processes, each with a model, slots and blocks of its own. Also `-dp`.",
        minimum=1, maximum=64,
    )
    data_parallel_lockstep: bool | None = flag(
        None, SWITCH, MEMORY,
        "Ranks start every step together, those without work with a step of padding. Experts that are spread "
        "over ranks need it.", default_text="auto: off",
    )
    scheduling_policy: str = flag(
        "fcfs", TEXT, MEMORY,
        "Order of waiting requests: first come, or the request's `priority` (lower first).",
        choices=("fcfs", "priority"),
    )

    max_queued_requests: int = flag(1024, INTEGER, LIMITS, "Requests that may wait; more get 429.", minimum=0)
    max_queued_tokens: int = flag(
        4 * MIB, TOKENS, LIMITS, "Prompt tokens that may wait; more get 429.", minimum=1
    )
    queue_timeout: float | None = flag(
        60.0, SECONDS, LIMITS, "How long a request may wait before it gets 429; `none` for ever.", minimum=0,
        is_optional=True,
    )
    request_timeout: float | None = flag(
        None, SECONDS, LIMITS, "How long a request may take in all; then 408 or an error event.", minimum=0,
        default_text="none",
    )
    stall_timeout: float | None = flag(
        60.0, SECONDS, LIMITS,
        "How long a reader may take nothing before its request is aborted; `none` for ever.", minimum=0,
        is_optional=True,
    )
    engine_stall_timeout: float = flag(
        60.0, SECONDS, LIMITS,
        "How long the engine may stand still with work pending before it counts as dead.", minimum=1,
    )
    drain_grace: float = flag(
        0.0, SECONDS, LIMITS,
        "After SIGTERM, how long new requests are still accepted while `/ready` says 503.", minimum=0,
    )
    shutdown_timeout: float = flag(
        30.0, SECONDS, LIMITS, "How long running requests have to finish after that.", minimum=0
    )

    generation_config: str = flag(
        "auto", TEXT, REQUESTS,
        "Where defaults of temperature, top_p, top_k, min_p and repetition_penalty, and a limit "
        "max_new_tokens, come from: `auto` is the model's `generation_config.json`, `vllm` no file, anything "
        "else a folder that holds such a file.",
    )
    override_generation_config: str | None = flag(
        None, JSON, REQUESTS, "The same defaults as a JSON object; it wins.", default_text="none"
    )
    chat_template: str | None = flag(
        None, TEXT, REQUESTS, "Chat template in place of the checkpoint's: a file, or the template itself.",
        default_text="the checkpoint's",
    )
    trust_request_chat_template: bool = flag(
        False, SWITCH, REQUESTS,
        "Let requests bring a `chat_template` of their own. It runs in a sandbox with a time limit; still, "
        "only for clients whom you trust.",
    )
    tool_call_parser: str = flag(
        "auto", TEXT, REQUESTS, "How the model writes calls of tools; `auto` asks the chat template.",
        choices=("auto", "hermes", "none"),
    )
    reasoning_parser: str = flag(
        "auto", TEXT, REQUESTS,
        "How the model marks its thoughts, which become `reasoning_content`; `auto` asks the chat template.",
        choices=("auto", "think", "none"),
    )
    default_max_tokens: int = flag(
        4096, TOKENS, REQUESTS,
        "Most tokens of a chat's answer whose request names no limit; never more than the context holds.",
        minimum=1,
    )
    max_logprobs: int = flag(
        20, INTEGER, REQUESTS, "Most log-probabilities a position that a request may ask for.", minimum=0
    )
    strict_request_fields: bool = flag(
        False, SWITCH, REQUESTS,
        "Answer 400 to request fields that are not known, instead of ignoring them.",
    )
    sse_keep_alive_interval: float = flag(
        15.0, SECONDS, REQUESTS, "A comment line goes to a silent stream this often; 0 sends none.", minimum=0
    )

    docs: bool = flag(True, SWITCH, REQUESTS, "Serve `/docs` and `/openapi.json`.")
    console: bool = flag(True, SWITCH, REQUESTS, "Serve the console at `/`.")

    metrics_compat: str = flag(
        "vllm", TEXT, LOGS, "Also export the series that dashboards and autoscalers read under vLLM's names.",
        choices=("vllm", "none"),
    )
    otlp_traces_endpoint: str | None = flag(
        None, TEXT, LOGS,
        "Send a span of each request for text to this collector: an `http://` or `https://` URL that takes "
        "OTLP over HTTP. Needs `pip install 'mambad[otel]'`; the `OTEL_*` variables do the rest.",
        default_text="none",
    )
    log_level: str = flag(
        "info", TEXT, LOGS, "Least severity that is logged.",
        choices=("debug", "info", "warning", "error", "critical"),
    )
    log_format: str = flag("text", TEXT, LOGS, "Form of a log line.", choices=("text", "json"))
    log_prompts: bool = flag(
        False, SWITCH, LOGS, "Write prompts to the log and to traces; without it they never get there."
    )
    disable_access_log_for_endpoints: tuple[str, ...] = flag(
        QUIET_ENDPOINTS, TEXT, LOGS, "Paths that leave no access log line.", is_list=True
    )
    enable_fault_injection: bool = flag(
        False, SWITCH, LOGS, "Take orders for faults at `POST /debug/faults`: for tests, on loopback only."
    )
    # fmt: on


FLAGS = flags_of(ServerConfig)
