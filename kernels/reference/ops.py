"""`ReferenceOps`: the readable oracle for the other kernels, and what runs where no compiler was found.

It joins the ops of this folder; their contracts are in `mambad.kernels.ops`. Every op goes through its
rows or chunks one at a time, because torch's bits depend on how many there are.
"""

from collections.abc import Callable

from mambad.kernels.reference import activation, attention, conv, embedding, norm, sampling, ssd
from mambad.kernels.reference import linear as linear_file
from mambad.kernels.reference import selective_scan as scan_file


class ReferenceOps:
    """The ops in plain torch, on any device.

    torch must run with one thread (`select_ops` sees to it): where it cuts an op for its threads changes
    the last bits of the result.

    Attributes:
        name: "reference".
        reason: why it was chosen, for the log.
    """

    name = "reference"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def record(self, function: Callable[[], object], progress_address: int | None = None) -> None:
        """Implement `Ops.record`: it can't."""

    pack_linear = staticmethod(linear_file.pack_linear)
    linear = staticmethod(linear_file.linear)
    embed = staticmethod(embedding.embed)
    divide = staticmethod(activation.divide)
    draw = staticmethod(sampling.draw)
    rms_norm = staticmethod(norm.rms_norm)
    add_rms_norm = staticmethod(norm.add_rms_norm)
    gated_rms_norm = staticmethod(norm.gated_rms_norm)
    silu_mul = staticmethod(activation.silu_mul)
    conv_prefill = staticmethod(conv.conv_prefill)
    conv_update = staticmethod(conv.conv_update)
    selective_scan = staticmethod(scan_file.selective_scan)
    selective_state_update = staticmethod(scan_file.selective_state_update)
    ssd_scan = staticmethod(ssd.ssd_scan)
    ssd_state_update = staticmethod(ssd.ssd_state_update)
    kv_write = staticmethod(attention.kv_write)
    attention_prefill = staticmethod(attention.attention_prefill)
    attention_decode = staticmethod(attention.attention_decode)
