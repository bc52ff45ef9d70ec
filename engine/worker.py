"""The engine process: `python -m mambad.engine.worker`, started by `engine_process`.

Reads one line of JSON (`WorkerStart`) from standard input, connects, loads the model and serves steps
until told to exit. Standard input stays open: when it ends, the front end is gone and so are we. Owns the
socket's engine end; the engine itself knows nothing of it.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq

from mambad.engine.build import build_engine
from mambad.engine.engine import Engine
from mambad.engine.errors import ConfigError, EngineDeadError, LoadError
from mambad.engine.faults import STEP_FAULTS
from mambad.engine.lockstep import Lockstep
from mambad.engine.logs import set_log_level, set_up_logging
from mambad.engine.messages import (
    Abort,
    Call,
    Exit,
    Fatal,
    Finish,
    FromEngine,
    Inject,
    Progress,
    Query,
    Ready,
    Reply,
    SetLogLevel,
    Shutdown,
    Stats,
    StepOutput,
    Submit,
    ToEngine,
    WorkerStart,
    encode,
    to_engine_decoder,
)
from mambad.engine.outputs import RequestOutput
from mambad.engine.progress import ProgressCounter

logger = logging.getLogger("mambad.engine.worker")  # it runs as __main__

REPORT_INTERVAL_S = 0.5
BUSY_REPORT_DELAY_S = 0.02
BLOCKED_POLL_MS = 1
PROGRESS_INTERVAL_S = 0.1


class Worker:
    """The main loop around an engine.

    Args:
        engine: what to drive.
        socket: connected to the front end.
        lockstep: with the other ranks; None steps alone.
    """

    def __init__(self, engine: Engine, socket: "zmq.Socket[bytes]", lockstep: Lockstep | None = None) -> None:
        self._engine = engine
        self._lockstep = lockstep
        self._socket = socket
        self._next_report_s = 0.0
        self._is_exiting = False
        self._is_busy = False

    def run(self) -> None:
        """Serve until `Exit`."""
        engine = self._engine
        while not self._is_exiting:
            self._drain_inbox()
            if self._lockstep is not None and self._lockstep.is_joined:
                self._step_together(self._lockstep)
            elif engine.has_work:
                self._step(min_decode_rows=0)
            else:
                engine.maintain()
                self._deliver(engine.scheduler.take_outputs())
            self._report_if_due()
        self._deliver(engine.drain())

    def _step(self, min_decode_rows: int) -> None:
        """Step; the beginning and the end of work are reported soon, however short the work is."""
        if not self._is_busy:
            self._is_busy = True
            self._next_report_s = min(self._next_report_s, time.monotonic() + BUSY_REPORT_DELAY_S)
        self._deliver(self._engine.step(self._report_if_due, min_decode_rows))
        if not self._engine.has_work:
            self._is_busy = False
            self._next_report_s = 0.0

    def _step_together(self, lockstep: Lockstep) -> None:
        """Agree with the other ranks, then compute: a step, or padding while only others have work."""
        engine = self._engine
        agreement = lockstep.agree(engine.has_work, engine.num_decode_rows, self._report_if_due)
        if agreement.is_over:
            return
        has_work = engine.has_work
        if has_work:
            self._step(agreement.num_rows)
        if not has_work or engine.is_blocked:
            engine.dummy_step(agreement.num_rows)
            engine.maintain()

    def _drain_inbox(self) -> None:
        """Take in every message that is there; while there is nothing to do, wait for one."""
        timeout_ms = int(REPORT_INTERVAL_S * 1000)
        if self._lockstep is not None and self._lockstep.is_joined:
            timeout_ms = 0
        elif self._engine.has_work:
            timeout_ms = BLOCKED_POLL_MS if self._engine.is_blocked else 0
        if not self._socket.poll(timeout_ms):
            return
        while not self._is_exiting:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(to_engine_decoder.decode(data))

    def _handle(self, message: ToEngine) -> None:
        engine = self._engine
        match message:
            case Submit(submissions, call):
                self._hear(call)
                for submission in submissions:
                    engine.submit(submission)
            case Abort(request_id, reason):
                engine.abort(request_id, reason)
            case Finish(request_id, num_kept_tokens):
                engine.finish_early(request_id, num_kept_tokens)
            case Shutdown(text):
                self._deliver(engine.shut_down(text))
            case _:
                self._handle_control(message)

    def _handle_control(self, message: ToEngine) -> None:
        match message:
            case Query(query_id, options):
                self._send(Reply(query_id, self._engine.report().state(**options)))
            case Call(number):
                self._hear(number)
            case Inject():
                self._inject(message)
            case SetLogLevel(level):
                set_log_level(level)
            case Exit():
                self._is_exiting = True

    def _hear(self, call: int) -> None:
        if self._lockstep is not None:
            self._lockstep.call(call)

    def _inject(self, order: Inject) -> None:
        """Order a fault, or do it; the answer is sent first, as far as anybody is left to send it."""
        faults = self._engine.faults
        self._send(Reply(order.query_id, {"is_enabled": faults is not None}))
        if faults is None:
            return
        logger.warning("fault injection: %s, %d times", order.name, order.times)
        if order.name in STEP_FAULTS:
            faults.order(order.name, order.times, order.duration_ms)
        elif order.name == "poison_free":
            self._engine.poison_free()
        elif order.name == "kill_engine":
            time.sleep(0.05)  # let the answer leave first
            os.kill(os.getpid(), signal.SIGKILL)
        elif order.name == "hang_engine":
            while True:
                time.sleep(1)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        if outputs:
            self._send(StepOutput(tuple(outputs)))

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_report_s:
            self._next_report_s = now + REPORT_INTERVAL_S
            self._send(Stats(self._engine.stats()))

    def _send(self, message: FromEngine) -> None:
        self._socket.send(encode(message))


class ProgressReporter:
    """Passes the loader's progress on, at most every tenth of a second."""

    def __init__(self, socket: "zmq.Socket[bytes]", counter: ProgressCounter) -> None:
        self._socket = socket
        self._counter = counter
        self._next_s = 0.0

    def __call__(self, done: int, total: int, what: str) -> None:
        """Report that `done` of `total` of `what` is done."""
        self._counter.bump()
        now = time.monotonic()
        if now >= self._next_s or done >= total:
            self._next_s = now + PROGRESS_INTERVAL_S
            self._socket.send(encode(Progress(what, done, total)))


def _read_line(descriptor: int) -> bytes:
    """Read one line and not a byte more: what follows is for whoever watches the descriptor."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return line


def _watch_parent() -> None:
    """End this process when standard input ends, whatever the other threads do."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="watch-parent", daemon=True).start()


def _serve(start: WorkerStart, socket: "zmq.Socket[bytes]") -> int:
    counter = ProgressCounter(Path(start.progress_path))
    try:
        engine, info = build_engine(start.config, ProgressReporter(socket, counter), counter)
    except (ConfigError, LoadError) as error:
        kind = "config" if isinstance(error, ConfigError) else "load"
        socket.send(encode(Fatal(kind, str(error))))
        return 2
    lockstep = None
    if start.rendezvous is not None:
        lockstep = Lockstep(start.rank, start.config.data_parallel_size, Path(start.rendezvous))
    socket.send(encode(Stats(engine.stats())))  # before anybody can ask for it
    socket.send(encode(Ready(info)))
    try:
        Worker(engine, socket, lockstep).run()
    except EngineDeadError as error:
        logger.critical("the engine can't go on: %s", error)
        socket.send(encode(Fatal("engine", str(error))))
        return 1
    engine.close()
    return 0


def main() -> int:
    """Run the engine process; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both also reach the front end, which drains first
    start = msgspec.json.decode(_read_line(sys.stdin.fileno()), type=WorkerStart)
    _watch_parent()
    set_up_logging(start.config.log_level, start.config.log_format)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(start.endpoint)
    try:
        return _serve(start, socket)
    except Exception as error:
        logger.exception("the engine process ends")
        socket.send(encode(Fatal("engine", f"{type(error).__name__}: {error}")))
        return 1
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main())
