"""How many processors and how much memory this process may use: affinity and cgroup limits, versions 1 and 2.

Only reads files; a limit that can't be read counts as none. Owns no setting: `--threads` and
`--kv-cache-memory-bytes` are applied by the callers. No torch.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_DEFAULT_THREADS = 16
_UNLIMITED_BYTES = 2**60  # version 1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Allowance:
    """An amount (threads or bytes) and, for the log, why it is that much."""

    amount: int
    reason: str


def allowed_threads(environment: Mapping[str, str], root: Path = Path("/")) -> Allowance:
    """Return how many threads to compute with when the user names no number.

    `OMP_NUM_THREADS` decides when it is a positive number; else the smallest of the processors in the
    affinity mask, the cgroup's quota rounded down, and 16. `root` holds `proc` and `sys` (tests).
    """
    asked = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        return Allowance(int(asked), "OMP_NUM_THREADS")
    affinity = len(os.sched_getaffinity(0))
    allowances = [Allowance(affinity, f"{affinity} processors allowed")]
    quota = _cpu_quota(root)
    if quota is not None:
        allowances.append(Allowance(max(1, int(quota)), f"cgroup quota of {quota:g} processors"))
    allowances.append(Allowance(MAX_DEFAULT_THREADS, f"default limit of {MAX_DEFAULT_THREADS}"))
    return min(allowances, key=lambda allowance: allowance.amount)


def available_memory(root: Path = Path("/")) -> Allowance:
    """Return the bytes that can still be allocated: what the kernel says, or what the cgroup leaves.

    Page cache that the kernel would give back counts as available in both.
    """
    allowances = [Allowance(_machine_available_bytes(root), "memory available on this machine")]
    for folder in _folders("memory", root):
        limit = _read_integer(folder / "memory.max") or _read_integer(folder / "memory.limit_in_bytes")
        used = _read_integer(folder / "memory.current") or _read_integer(folder / "memory.usage_in_bytes")
        if limit is None or used is None or limit >= _UNLIMITED_BYTES:
            continue
        fields = _read_fields(folder / "memory.stat", " ")
        reclaimable = fields.get("total_inactive_file", fields.get("inactive_file", 0))
        left = max(0, limit - max(0, used - reclaimable))
        allowances.append(Allowance(left, f"left of the cgroup limit of {limit / 2**30:.1f} GiB"))
    return min(allowances, key=lambda allowance: allowance.amount)


def _cpu_quota(root: Path) -> float | None:
    """Return the smallest quota on the way from this process's cgroup to the top, in processors."""
    quotas: list[float] = []
    for folder in _folders("cpu", root):
        words = _read_text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota = _read_integer(folder / "cpu.cfs_quota_us")
        period = _read_integer(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders that can limit this process: its cgroup and all above it, both versions.

    In a container the path in `/proc/self/cgroup` may be the host's and not exist: then only those above
    count, of which the topmost is the container's own.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [mount]
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        for top in tops:
            leaf = top / path.strip("/")
            yield leaf
            if leaf != top:
                yield from (folder for folder in leaf.parents if folder.is_relative_to(top))


def _machine_available_bytes(root: Path) -> int:
    kib = _read_fields(root / "proc/meminfo", ":").get("MemAvailable")
    if kib is not None:
        return kib * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read_fields(path: Path, separator: str) -> dict[str, int]:
    fields: dict[str, int] = {}
    for line in _read_text(path).splitlines():
        name, _, rest = line.partition(separator)
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0])
    return fields


def _read_integer(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
