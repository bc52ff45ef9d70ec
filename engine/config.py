"""What the engine process needs to know to start: frozen, checked, without torch.

`None` means computed or taken from the checkpoint; `build` says in the plan what became of it.
"""

import msgspec

from mambad.engine.cuts import CHUNK_SIZE
from mambad.engine.errors import ConfigError
from mambad.engine.models.spec import StateDtype


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine. Names are those of the command line, with underscores.

    Attributes:
        model: folder in Hugging Face layout, or a hub id.
        tokenizer: folder or hub id of the tokenizer when it is not the model's.
        revision, download_dir: for hub ids.
        dtype: auto, float32 or bfloat16: of the weights.
        mamba_ssm_cache_dtype: auto, float32 or bfloat16: of the recurrent state.
        quantization: none, int8 or int4: of the linear layers.
        device: auto or cpu.
        load_format: auto, or dummy for random weights in the shape of the configuration.
        seed: of the dummy weights.
        max_model_len: most tokens of a request.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: token budget of a step.
        num_state_slots: slots of the state pool.
        block_size: tokens a KV block.
        kv_cache_memory_bytes: slots and blocks together.
        threads: CPU threads of the kernels; None takes what the container allows.
        enforce_eager: call the kernels one by one instead of capturing the decode step.
        async_scheduling: launch the next step before the last one is committed.
        scheduling_policy: fcfs or priority.
        queue_timeout: seconds until a waiting request is refused; None for ever.
        state_cache_bytes: host memory for preempted requests.
        scrub_slots: zero a slot's state when it becomes free.
        data_parallel_size: engine processes; each has a model, slots and blocks of its own.
        data_parallel_lockstep: whether they start every step together.
        enable_fault_injection: take orders for faults.
        log_level, log_format: of the engine process.
    """

    model: str
    tokenizer: str | None = None
    revision: str | None = None
    download_dir: str | None = None
    dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    quantization: str = "none"
    device: str = "auto"
    load_format: str = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    num_state_slots: int | None = None
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    threads: int | None = None
    enforce_eager: bool = False
    async_scheduling: bool = False
    scheduling_policy: str = "fcfs"
    queue_timeout: float | None = 60.0
    state_cache_bytes: int = 1 << 30
    scrub_slots: bool = False
    data_parallel_size: int = 1
    data_parallel_lockstep: bool = False
    enable_fault_injection: bool = False
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Check every range. Raises: ConfigError with field, value and allowed range."""
        for name, lowest in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", CHUNK_SIZE),
            ("block_size", 1),
            ("data_parallel_size", 1),
            ("state_cache_bytes", 0),
        ):
            _check_at_least(name, getattr(self, name), lowest)
        for name in ("max_model_len", "num_state_slots", "kv_cache_memory_bytes", "threads"):
            value = getattr(self, name)
            if value is not None:
                _check_at_least(name, value, 1)
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _check_choice("mamba_ssm_cache_dtype", self.mamba_ssm_cache_dtype, ("auto", "float32", "bfloat16"))
        _check_choice("quantization", self.quantization, ("none", "int8", "int4"))
        _check_choice("device", self.device, ("auto", "cpu"))
        _check_choice("load_format", self.load_format, ("auto", "dummy"))
        _check_choice("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))

    @property
    def state_dtype(self) -> StateDtype:
        """What `mamba_ssm_cache_dtype` comes to."""
        return "bfloat16" if self.mamba_ssm_cache_dtype == "bfloat16" else "float32"


def _check_at_least(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise ConfigError(f"{_flag(name)} is {value}, it must be at least {lowest}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{_flag(name)} is {value!r}, it must be one of {', '.join(choices)}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
