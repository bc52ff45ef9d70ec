"""`mambad serve` with `dummy_engine.py` in the place of its engine process. Started by `frontend.py`.

python tests/perf/frontend_server.py STEPS_PER_S [flag of mambad serve ...]
"""

import sys
from pathlib import Path

from mambad.engine import engine_process
from mambad.server.cli import main

if __name__ == "__main__":
    rate, *flags = sys.argv[1:]
    engine_process.WORKER = (str(Path(__file__).with_name("dummy_engine.py")), rate)
    sys.exit(main(["serve", *flags]))
