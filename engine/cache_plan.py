"""How many slots and blocks the memory given holds: arithmetic, and what to tell about it. No torch."""

from dataclasses import dataclass

from mambad.engine.errors import ConfigError

DEFAULT_MAX_MODEL_LEN = 32768
MAX_DEFAULT_CACHE_BYTES = 4 << 30
NUM_NULL_IDS = 1
"""Slot 0 and block 0 take memory, too."""


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """What a model needs: bytes a slot, bytes a block (0 without attention), tokens a block."""

    slot_bytes: int
    block_bytes: int
    block_size: int


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What start-up decided about memory.

    Attributes:
        num_slots, num_blocks: the null ids not counted.
        max_model_len: most tokens of a request: what is asked for, or what the blocks hold for one.
        num_bytes: slots and blocks together, the null ids included.
        notes: what was clamped, and why.
    """

    num_slots: int
    num_blocks: int
    max_model_len: int
    num_bytes: int
    notes: tuple[str, ...]


def default_cache_bytes(available_bytes: int, weight_bytes: int) -> int:
    """Return the memory for slots and blocks: a quarter of what the weights leave, at most 4 GiB."""
    return min(max(available_bytes - weight_bytes, 0) // 4, MAX_DEFAULT_CACHE_BYTES)


def plan_cache(
    needs: CacheNeeds,
    num_bytes: int,
    *,
    max_num_seqs: int,
    num_state_slots: int | None,
    max_model_len: int | None,
    model_max_len: int | None,
) -> CachePlan:
    """Divide `num_bytes` into slots and blocks.

    Slots come first, up to `num_state_slots` (or `max_num_seqs`), but a model with attention keeps half of
    the memory for blocks. One request of the longest length must fit alone, so that every request ends:
    `max_model_len` is clamped to that.

    Raises:
        ConfigError: not one slot, with a block where the model has attention, fits.
    """
    smallest = (1 + NUM_NULL_IDS) * (needs.slot_bytes + needs.block_bytes)
    if num_bytes < smallest:
        raise ConfigError(
            f"{num_bytes} bytes hold no slot of {needs.slot_bytes} bytes"
            + (f" with a block of {needs.block_bytes} bytes" if needs.block_bytes else "")
            + f"; set --kv-cache-memory-bytes to at least {smallest}"
        )
    notes: list[str] = []
    num_slots = _plan_slots(needs, num_bytes, num_state_slots, max_num_seqs, notes)
    length = max_model_len or model_max_len or DEFAULT_MAX_MODEL_LEN
    if not needs.block_bytes:
        total = (num_slots + NUM_NULL_IDS) * needs.slot_bytes
        return CachePlan(num_slots, 0, length, total, tuple(notes))
    slots_bytes = (num_slots + NUM_NULL_IDS) * needs.slot_bytes
    num_blocks = (num_bytes - slots_bytes) // needs.block_bytes - NUM_NULL_IDS
    num_blocks = min(num_blocks, num_slots * -(-length // needs.block_size))
    if num_blocks * needs.block_size < length:
        notes.append(
            f"max_model_len is {num_blocks * needs.block_size}, not {length}: the KV blocks hold no more for "
            "one request; a larger --kv-cache-memory-bytes raises it"
        )
        length = num_blocks * needs.block_size
    total = slots_bytes + (num_blocks + NUM_NULL_IDS) * needs.block_bytes
    return CachePlan(num_slots, num_blocks, length, total, tuple(notes))


def _plan_slots(
    needs: CacheNeeds, num_bytes: int, asked: int | None, max_num_seqs: int, notes: list[str]
) -> int:
    wanted = asked or max_num_seqs
    share = num_bytes // 2 if needs.block_bytes else num_bytes
    least = 1 + NUM_NULL_IDS
    if not needs.slot_bytes:
        return wanted
    possible = max(share // needs.slot_bytes, least) - NUM_NULL_IDS
    if possible < wanted:
        name = "num_state_slots" if asked else "the number of state slots"
        notes.append(
            f"{name} is {possible}, not {wanted}: {share} bytes hold no more of {needs.slot_bytes} bytes "
            "each; a larger --kv-cache-memory-bytes raises it"
        )
    return min(wanted, possible)
