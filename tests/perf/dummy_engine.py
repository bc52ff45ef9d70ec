"""An engine process without a model: speaks the real one's protocol, and gives every request a token a step.

    python tests/perf/dummy_engine.py STEPS_PER_S      0: as fast as it can

Tells the front end what a small model would; reads the same line on standard input, and ends with it.
"""

import os
import sys
import threading
import time
from itertools import count

import msgspec
import zmq

from mambad.engine.messages import (
    Abort,
    EngineInfo,
    Exit,
    Finish,
    Ready,
    Stats,
    StepOutput,
    Submit,
    WorkerStart,
    encode,
    to_engine_decoder,
)
from mambad.engine.outputs import EngineStats, RequestOutput, RequestTimes

TOKEN_IDS = range(300, 428)
REPORT_INTERVAL_S = 0.5


class DummyEngine:
    """Runs everything that is submitted at once.

    Args:
        socket: connected to the front end.
        interval_s: of steps; 0 = none.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", interval_s: float) -> None:
        self._socket = socket
        self._interval_s = interval_s
        self._left: dict[str, int] = {}
        self._tokens = count()
        self._next_report_s = 0.0
        self.is_over = False

    def run(self) -> None:
        """Serve until told to exit."""
        next_s = time.monotonic()
        while not self.is_over:
            self._read()
            if self._left:
                self._step()
                next_s = max(next_s + self._interval_s, time.monotonic() - self._interval_s)
                time.sleep(max(next_s - time.monotonic(), 0.0))
            if time.monotonic() >= self._next_report_s:
                self._next_report_s = time.monotonic() + REPORT_INTERVAL_S
                self._send(Stats(EngineStats(time_s=time.time(), num_running=len(self._left))))

    def _read(self) -> None:
        timeout_ms = 0 if self._left else int(REPORT_INTERVAL_S * 1000)
        while self._socket.poll(timeout_ms):
            timeout_ms = 0
            message = to_engine_decoder.decode(self._socket.recv())
            match message:
                case Submit(submissions):
                    self._left |= {item.request_id: item.params.max_tokens for item in submissions}
                case Abort(request_id) | Finish(request_id):
                    self._left.pop(request_id, None)
                case Exit():
                    self.is_over = True

    def _step(self) -> None:
        token = (TOKEN_IDS[next(self._tokens) % len(TOKEN_IDS)],)
        outputs = []
        for request_id in list(self._left):
            self._left[request_id] -= 1
            is_last = self._left[request_id] == 0
            if is_last:
                del self._left[request_id]
                times = RequestTimes(0.0, 0.0, 0.0, time.monotonic())
                outputs.append(RequestOutput(request_id, token, finish_reason="length", times=times))
            else:
                outputs.append(RequestOutput(request_id, token))
        self._send(StepOutput(tuple(outputs)))

    def _send(self, message: msgspec.Struct) -> None:
        self._socket.send(encode(message))


def info() -> EngineInfo:
    """Return what a small model would report at its start."""
    return EngineInfo(
        model="dummy", family="dummy", num_parameters=0, dtype="float32", state_dtype="float32",
        quantization="none", device="cpu", kernels="none", vocab_size=512, max_model_len=1 << 20,
        max_num_seqs=4096, num_slots=4096, num_blocks=0, block_size=16, slot_bytes=0, block_bytes=0,
        weight_bytes=0, num_threads=1, runs_ahead=False, eos_token_ids=(0,), load_duration_s=0.0, plan=(),
    )  # fmt: skip


def main() -> int:
    """Run until the front end says so, or is gone."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerStart)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(1)), daemon=True).start()
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(start.endpoint)
    socket.send(encode(Stats(EngineStats())))
    socket.send(encode(Ready(info())))
    rate = float(sys.argv[1])
    DummyEngine(socket, 1 / rate if rate else 0.0).run()
    socket.close(linger=1000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
