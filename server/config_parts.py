"""Hands each part of the program its share of the settings.

The engine gets `EngineConfig` and `QueueLimits`, the HTTP application `AppSettings`. Reads key files;
decides nothing else.
"""

import logging
from typing import Any

from mambad.engine.async_engine import QueueLimits
from mambad.engine.config import EngineConfig
from mambad.engine.cuts import CHUNK_SIZE
from mambad.engine.errors import ConfigError
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.generation_config import sampling_defaults
from mambad.server.key_files import checked, require_keys
from mambad.server.model_source import ModelSource
from mambad.server.settings import AppSettings

logger = logging.getLogger(__name__)


def engine_config(config: ServerConfig, source: ModelSource) -> EngineConfig:
    """Return what the engine process is told; raises ConfigError for a value that it can't use."""
    budget = config.max_num_batched_tokens
    if budget < CHUNK_SIZE:
        logger.warning("--max-num-batched-tokens %d is below one chunk: using %d", budget, CHUNK_SIZE)
        budget = CHUNK_SIZE
    names = {flag.name for flag in FLAGS}.intersection(EngineConfig.__struct_fields__)
    shared: dict[str, Any] = {name: getattr(config, name) for name in names}
    shared |= {
        "model": str(source.folder),
        "tokenizer": str(source.tokenizer_folder),
        "max_num_batched_tokens": budget,
    }
    for name in ("async_scheduling", "data_parallel_lockstep"):
        if shared[name] is None:
            del shared[name]  # the engine's default is what the measurements say
    return EngineConfig(**shared)


def queue_limits(config: ServerConfig) -> QueueLimits:
    """Return what bounds the queue."""
    return QueueLimits(
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        engine_stall_timeout_s=config.engine_stall_timeout,
    )


def app_settings(config: ServerConfig, source: ModelSource, is_loopback: bool) -> AppSettings:
    """Return what the HTTP application is told.

    Args:
        config: all settings.
        source: gives the model's name when none is configured.
        is_loopback: whether only this machine can reach the sockets.

    Raises:
        ConfigError: a key file can't be used, or faults could be ordered from other machines.
    """
    if config.enable_fault_injection and not is_loopback:
        raise ConfigError(
            f"--enable-fault-injection is refused with --host {config.host}: only this machine may order "
            "faults; use --host 127.0.0.1"
        )
    return AppSettings(
        served_model_names=config.served_model_name or (source.name,),
        max_body_bytes=config.max_body_bytes,
        api_keys=checked("--api-key", config.api_key) + require_keys("--api-key-file", config.api_key_file),
        admin_api_keys=checked("--admin-api-key", config.admin_api_key)
        + require_keys("--admin-api-key-file", config.admin_api_key_file),
        protect_metrics=config.protect_metrics,
        allowed_origins=config.allowed_origins,
        allowed_hosts=config.allowed_hosts,
        is_loopback=is_loopback,
        root_path=config.root_path,
        sampling_defaults=sampling_defaults(
            config.generation_config, config.override_generation_config, source.folder
        ),
        default_chat_tokens=config.default_max_tokens,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
        trust_request_chat_template=config.trust_request_chat_template,
        max_logprobs=config.max_logprobs,
        request_timeout_s=config.request_timeout,
        stall_timeout_s=config.stall_timeout,
        sse_keep_alive_s=config.sse_keep_alive_interval,
        strict_request_fields=config.strict_request_fields,
        scheduling_policy=config.scheduling_policy,
        docs=config.docs,
        console=config.console,
        metrics_compat=config.metrics_compat,
        log_prompts=config.log_prompts,
        enable_fault_injection=config.enable_fault_injection,
    )
