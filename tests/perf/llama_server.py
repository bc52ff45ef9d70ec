"""llama.cpp's own HTTP server, from the package xllamacpp: `llama_server.py FILE.gguf PORT SLOTS THREADS`.

Runs in the peer's environment until it is killed. Prints what the build can do.
"""

import importlib
import sys
import time

xllamacpp = importlib.import_module("xllamacpp")  # not a dependency of mambad, so not declared

path, port, slots, threads = sys.argv[1], *(int(word) for word in sys.argv[2:])
options = xllamacpp.CommonParams()
options.model.path = path
options.port = port
options.n_parallel = slots
options.n_ctx = slots * 1024
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
options.n_batch = options.n_ubatch = 512
options.warmup = False
options.fit_params = False
options.ui = False
options.verbosity = -1
options.n_threads_http = slots + 2
# Nothing of one measurement may be reused by the next.
options.cache_ram_mib = 0
options.n_ctx_checkpoints = 0
options.cache_prompt = False
server = xllamacpp.Server(options)
print(f"llama.cpp (xllamacpp {xllamacpp.__version__}): {xllamacpp.get_system_info()}", flush=True)
while True:
    time.sleep(3600)
