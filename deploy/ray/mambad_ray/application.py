"""The Ray Serve application: `serve run mambad_ray.application:build flags="demo --threads 2"`.

    Serve's proxy ── Door ── AffinityRouter ── Replica, Replica, … as many as `scaling` wants

Decides the numbers that tie Serve to mambad's settings: how many requests a replica is given at once, when
another one is started, how long one that goes may finish its streams.
"""

import shlex
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from mambad_ray.door import Door
from mambad_ray.replica import Replica, read_config
from mambad_ray.router import AffinityRouter
from mambad_ray.scaling import by_slots

DEFAULT_SLOTS = 64
DOOR_REQUESTS = 2048
SPARE_S = 10.0


def _words(flags: object) -> object:
    return shlex.split(flags) if isinstance(flags, str) else flags


class Arguments(BaseModel):
    """What `serve.yaml` or the command line may set.

    Attributes:
        flags: as behind `mambad serve`; the model first. A list, or a line for the shell.
        min_replicas, max_replicas, upscale_delay_s, downscale_delay_s, metrics_interval_s: of Serve's
            autoscaler.
        cpus, gpus: that Ray sets aside for a replica.
    """

    model_config = ConfigDict(extra="forbid")

    flags: Annotated[list[str], BeforeValidator(_words)] = []
    min_replicas: int = 1
    max_replicas: int = 4
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 120.0
    metrics_interval_s: float = 2.0
    cpus: float = 1.0
    gpus: float = 0.0


def build(arguments: Arguments) -> Application:
    """Return the application."""
    config = read_config(arguments.flags)
    slots = config.max_num_seqs or DEFAULT_SLOTS
    autoscaling = AutoscalingConfig(
        min_replicas=arguments.min_replicas,
        max_replicas=arguments.max_replicas,
        upscale_delay_s=arguments.upscale_delay_s,
        downscale_delay_s=arguments.downscale_delay_s,
        metrics_interval_s=arguments.metrics_interval_s,
        look_back_period_s=2 * arguments.metrics_interval_s,
        policy=AutoscalingPolicy(policy_function=by_slots),
    )
    replicas = serve.deployment(Replica).options(
        name="mambad",
        autoscaling_config=autoscaling,
        # As many as run, and again as many in line, so that a slot that comes free is filled at once.
        max_ongoing_requests=2 * slots,
        max_queued_requests=config.max_queued_requests,
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=config.shutdown_timeout + SPARE_S,
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
    )
    door = serve.deployment(Door).options(
        name="door",
        max_ongoing_requests=DOOR_REQUESTS,
        graceful_shutdown_timeout_s=config.shutdown_timeout + SPARE_S,
        ray_actor_options={"num_cpus": 0},
    )
    return door.bind(replicas.bind(arguments.flags), config.max_body_bytes)
