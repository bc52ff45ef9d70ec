"""The one place that chooses who computes the ops: the C library or the reference.

Owns the variable that forces the choice. It is made once, at start-up.
"""

import logging
import os

import torch

from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps

logger = logging.getLogger(__name__)

KERNELS_VARIABLE = "MAMBAD_KERNELS"
"""Environment variable that forces an implementation: auto, cpu or reference."""


def select_ops(device: torch.device, num_threads: int) -> Ops:
    """Choose the implementation for `device` once, at start-up, and log which and why.

    `MAMBAD_KERNELS` is auto (default: the C library where it loads, else the reference), cpu or reference.
    Sets torch to one thread in this process. Where torch cuts an op for its threads changes the last bits of
    the reference; and beside the C library, whose threads are its own, torch only samples and adds: its
    threads would spin at barriers in ops of microseconds, on processors that num_threads does not grant.

    Args:
        device: where the tensors will live.
        num_threads: threads that the C library may use.

    Raises:
        ValueError: the variable's value is unknown, or asks for kernels that can't run here.
    """
    choice = os.environ.get(KERNELS_VARIABLE, "auto")
    if choice not in ("auto", "cpu", "reference"):
        raise ValueError(f"{KERNELS_VARIABLE}={choice!r} is unknown: use auto, cpu or reference")
    ops = _choose(choice, device, num_threads)
    torch.set_num_threads(1)
    logger.info("kernels: %s (%s)", ops.name, ops.reason)
    return ops


def _choose(choice: str, device: torch.device, num_threads: int) -> Ops:
    reason = f"{KERNELS_VARIABLE}=reference"
    if choice != "reference":
        is_cpu = device.type == "cpu"
        loaded = load_cpu_ops(num_threads) if is_cpu else f"the C kernels do not run on {device.type}"
        if not isinstance(loaded, str):
            return loaded
        if choice == "cpu":
            raise ValueError(f"{KERNELS_VARIABLE}=cpu, but {loaded}; use auto or reference")
        reason = loaded
    return ReferenceOps(reason)
