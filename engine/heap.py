"""How the engine process's heap behaves: settings for the C library's allocator, which it reads at its start.

Owns the values only; on another C library than glibc they do nothing.
"""

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"

_SETTINGS = {
    # Activations of a prefill step are megabytes each. By default they come from fresh mappings or go back to
    # the system when freed, and every step pays for touching their pages anew: 6 to 9 % of a prefill.
    "mmap_threshold": 32 << 20,
    "trim_threshold": 256 << 20,
    # Loading and stepping are two threads; with one arena they share what is free.
    "arena_max": 1,
    # Transparent huge pages, by madvise.
    "hugetlb": 1,
}


def heap_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine process: `environment`, with our settings unless it has its own."""
    ours = ":".join(f"glibc.malloc.{name}={value}" for name, value in _SETTINGS.items())
    return {VARIABLE: ours, **environment}
