"""Which systems are compared on a checkpoint at a precision, and the command that starts each of them.

A system that a machine does not have, or that can't run a model or a precision, is left out of the list.
"""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from peers import HttpPeer, LlamaTools, Peer, Starter, TransformersPeer
from process import PeerError, Process, free_port

HERE = Path(__file__).parent
GGUF_KINDS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_K_M"}
MAMBAD_FLAGS = {
    "float32": "--dtype float32",
    "bfloat16": "--dtype bfloat16",
    "int8": "--dtype bfloat16 --quantization int8",
    "int4": "--dtype bfloat16 --quantization int4",
}
STATE_FLAG = "--mamba-ssm-cache-dtype bfloat16"
START_LIMIT_S = {"mambad": 120, "llama.cpp": 120, "vllm": 900}
MAX_TOKENS = 4352
"""Of a request: the longest prompt that is measured, and an answer."""


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: what the row is called.
        kind: mambad, llama.cpp, llama-bench, vllm or transformers, as --systems has it.
        start: starts it and returns when it is ready; raises PeerError.
        version: what it is, and how it was asked to run.
    """

    name: str
    kind: str
    start: Starter
    version: str


def systems(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    """Return the systems that --systems asks for and that can run this."""
    makers = {
        "mambad": _mambad, "llama.cpp": _llama_server, "llama-bench": _llama_bench, "vllm": _vllm,
        "transformers": _transformers,
    }  # fmt: skip
    return [item for kind in options.systems for item in makers[kind](folder, precision, options)]


def _log(folder: Path, precision: str, name: str, options: argparse.Namespace) -> Path:
    return options.folder / f"{folder.name}-{precision}.{name}.log"


def _mambad(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    variants = {"mambad": MAMBAD_FLAGS[precision]}
    if precision != "float32" and folder.name != "mamba-130m" and _knows("ssm-cache-dtype", "bfloat16"):
        variants["mambad, bf16 state"] = f"{MAMBAD_FLAGS[precision]} {STATE_FLAG}"
    for text in options.mambad_variant:
        name, _, flags = text.partition(":")
        variants[f"mambad, {name}"] = f"{MAMBAD_FLAGS[precision]} {flags}"
    if precision.startswith("int") and not _knows("quantization", precision):
        return []

    def starter(name: str, flags: str) -> Starter:
        def start() -> Peer:
            port = free_port()
            command = [
                sys.executable, "-m", "mambad", "serve", str(folder), "--port", str(port),
                "--threads", str(options.threads), "--max-num-seqs", str(options.max_batch),
                *shlex.split(flags),
            ]  # fmt: skip
            log = _log(folder, precision, name.replace(", ", "-").replace(" ", "-"), options)
            peer = _http_peer(command, log, port, "/ready", START_LIMIT_S["mambad"], options)
            if "kernels: reference" in log.read_text():
                peer.process.stop()
                raise PeerError("has no C kernels here; python -m mambad.kernels.cpu.build builds them")
            return peer

        return start

    return [
        System(name, "mambad", starter(name, flags), f"mambad {version('mambad')} {flags}")
        for name, flags in variants.items()
    ]


@cache
def _knows(flag: str, value: str) -> bool:
    """Return whether `mambad serve` has a flag with this choice."""
    command = [sys.executable, "-m", "mambad", "serve", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return any(flag in line and value in line for line in text.splitlines())


def _llama_server(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    def start() -> Peer:
        limit_s = options.cell_limit
        if options.llama_url:
            return HttpPeer(options.llama_url, limit_s)
        file, port = gguf_file(folder, precision, options), free_port()
        if options.llama_bin:
            command = [
                str(options.llama_bin / "llama-server"), "-m", str(file), "--port", str(port),
                "-np", str(options.max_batch), "-c", str(_context(options)), "-kvu", "--fit", "off",
                "--threads-http", str(options.max_batch + 2), "--no-ui",
                # Nothing of one measurement may be reused by the next.
                "--cache-ram", "0", "--ctx-checkpoints", "0", "--no-cache-prompt",
                *_llama_arguments(precision, folder, options),
            ]  # fmt: skip
        else:
            command = [options.llama_python, str(HERE / "llama_server.py"), str(file)]
            command += [str(number) for number in (port, options.max_batch, options.threads)]
        log = _log(folder, precision, "llama", options)
        return _http_peer(command, log, port, "/health", START_LIMIT_S["llama.cpp"], options)

    if not (options.llama_url or options.llama_bin or options.llama_python):
        return []
    kind = GGUF_KINDS[precision]
    if options.llama_bin:
        kind += f", {llama_version(options.llama_bin)}"
    return [System("llama.cpp", "llama.cpp", start, f"llama.cpp {kind}")]


def _llama_bench(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    if not options.llama_bin:
        return []

    def start() -> Peer:
        words = _llama_arguments(precision, folder, options)
        arguments = ["-m", str(gguf_file(folder, precision, options)), *words]
        return LlamaTools(options.llama_bin, arguments, options.cell_limit)

    return [System("llama.cpp, no server", "llama-bench", start, "llama-bench, llama-batched-bench")]


def _llama_arguments(precision: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return threads, and for quantized Mamba-1 the switch without which it ends at load."""
    needs_switch = precision.startswith("int") and folder.name == "mamba-130m"
    return ["-t", str(options.threads), *(["--no-repack"] if needs_switch else [])]


def _context(options: argparse.Namespace) -> int:
    """Return the tokens that all sequences share: short ones in every slot, or a long one."""
    return max(options.max_batch * 128, 2 * MAX_TOKENS)


@cache
def llama_version(folder: Path) -> str:
    done = subprocess.run([folder / "llama-server", "--version"], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if line.startswith("version")), "version unknown")


def gguf_file(folder: Path, precision: str, options: argparse.Namespace) -> Path:
    """Return the checkpoint as llama.cpp reads it, converted when it is not there yet."""
    kind = GGUF_KINDS[precision]
    path = options.checkpoints / f"{folder.name}-{kind}.gguf"
    if path.exists():
        return path
    try:
        if precision.startswith("int"):
            if not options.llama_bin:
                raise PeerError("a quantized file needs --llama-bin")
            source = gguf_file(folder, "float32", options)
            tool = options.llama_bin / "llama-quantize"
            subprocess.run([tool, source, path, kind], check=True, capture_output=True)
        else:
            python = options.llama_python or sys.executable
            subprocess.run([python, HERE / "to_gguf.py", folder, kind, path], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        path.unlink(missing_ok=True)
        raise PeerError(f"no GGUF file: {error}") from None
    return path


def _vllm(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    if precision.startswith("int") or folder.name == "mamba-130m" or not (options.vllm or options.vllm_url):
        return []  # its CPU build has no kernel for Mamba-1

    def start() -> Peer:
        if options.vllm_url:
            return HttpPeer(options.vllm_url, options.cell_limit)
        port = free_port()
        command = [
            options.vllm, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port),
            "--dtype", precision, "--max-model-len", str(MAX_TOKENS),
            "--max-num-seqs", str(options.max_batch),
            "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
        ]  # fmt: skip
        environment = os.environ | {
            "OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }  # fmt: skip
        log = _log(folder, precision, "vllm", options)
        return _http_peer(command, log, port, "/health", START_LIMIT_S["vllm"], options, env=environment)

    return [System("vLLM", "vllm", start, f"vLLM {precision}, --no-enable-prefix-caching")]


def _transformers(folder: Path, precision: str, options: argparse.Namespace) -> list[System]:
    if precision.startswith("int"):
        return []

    def start() -> Peer:
        log = _log(folder, precision, "transformers", options)
        return TransformersPeer(folder, precision, options.threads, options.cell_limit, log)

    text = f"transformers {version('transformers')}, torch {version('torch')}, generate"
    return [System("Transformers", "transformers", start, text)]


def _http_peer(
    command: list[str],
    log: Path,
    port: int,
    path: str,
    limit_s: float,
    options: argparse.Namespace,
    **more: object,
) -> HttpPeer:
    url = f"http://127.0.0.1:{port}"
    process = Process(command, log, **more)
    process.wait_for(url + path, limit_s)
    return HttpPeer(url, options.cell_limit, process)
