"""A decoder whose decode pass is a program: recorded once, computed by one call for any number of rows.

Owns the program's inputs, which every step overwrites, and its outputs, the last hidden states and the
logits, which stay where they are. The bits are those of the decoder. What a step holds is the runner's
business.
"""

import torch
from torch import Tensor

from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.decoder import Decoder
from mambad.kernels.program import Program


class CapturedDecoder:
    """What a `Decoder` does, in one set of pools, for steps of a limited number of rows.

    Args:
        decoder: the decoder, which prefills.
        pools: what the programs work in.
        programs: of the decode pass and of the head.
        inputs: what the first one reads, for the most rows.
        outputs: what it leaves, the last hidden states (B, hidden), which the second one reads; and what
            that one leaves, the logits (B, real_vocab).
    """

    def __init__(
        self,
        decoder: Decoder,
        pools: Pools,
        programs: tuple[Program, Program],
        inputs: DecodeInputs,
        outputs: tuple[Tensor, Tensor],
    ) -> None:
        self.spec = decoder.spec
        self.ops = decoder.ops
        self._decoder = decoder
        self._pools = pools
        self._decode, self._head = programs
        self._hidden, self._logits = outputs
        self._token_ids, self._positions, self._slots = (
            tensor.numpy() for tensor in (inputs.token_ids, inputs.positions, inputs.slots)
        )

    @property
    def num_calls(self) -> int:
        """Calls of ops in a step."""
        return self._decode.num_calls + self._head.num_calls

    @property
    def num_bytes(self) -> int:
        """Memory of the activations."""
        return self._decode.num_bytes + self._head.num_bytes

    def prefill(self, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """See `Decoder.prefill`."""
        return self._decoder.prefill(inputs, pools)

    def decode(self, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """See `Decoder.decode`; the result is valid until the next call of `decode` or `logits`."""
        assert pools.states is self._pools.states, "captured for other pools"
        num_rows = inputs.slots.shape[0]
        self._token_ids[:num_rows] = inputs.token_ids.numpy()
        self._positions[:num_rows] = inputs.positions.numpy()
        self._slots[:num_rows] = inputs.slots.numpy()
        self._decode.run(num_rows)
        return self._hidden[:num_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`; the result is valid until the next call."""
        num_rows = hidden.shape[0]
        if num_rows > self._hidden.shape[0]:
            return self._decoder.logits(hidden)
        if hidden.data_ptr() != self._hidden.data_ptr():
            self._hidden[:num_rows] = hidden
        self._head.run(num_rows)
        return self._logits[:num_rows]


def capture_decoder(
    decoder: Decoder, pools: Pools, max_rows: int, progress_address: int | None = None
) -> CapturedDecoder | None:
    """Record a decoder's decode pass for up to max_rows rows; None if its ops can't be.

    Args:
        decoder: the model.
        pools: what the steps will work in.
        max_rows: most rows of a step.
        progress_address: of a 64-bit number in which the calls made are counted.
    """
    inputs = DecodeInputs(
        token_ids=torch.zeros(max_rows, dtype=torch.int64),
        positions=torch.zeros(max_rows, dtype=torch.int32),
        slots=torch.zeros(max_rows, dtype=torch.int32),
    )
    decode = decoder.ops.record(lambda: decoder.decode(inputs, pools), progress_address)
    if decode is None:
        return None
    head = decoder.ops.record(lambda: decoder.logits(decode[1]), progress_address)
    assert head is not None, "what records once records again"
    return CapturedDecoder(decoder, pools, (decode[0], head[0]), inputs, (decode[1], head[1]))
