#!/bin/sh
# What a new machine may lack, said in one line each before anything is downloaded.
# usage: preflight.sh PYTHON VENV [PORT]     PYTHON may be empty when none was found
set -eu
python=$1 venv=$2 port=${3:-}
needed_mib=3000

fail() {
  echo "mambad: error: $1" >&2
  exit 2
}

if [ -z "$python" ]; then
  fail "no Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python3.11 …"
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  fail "$python is not Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python3.11 …"
fi

if [ ! -x "$venv/bin/pip" ]; then
  if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    fail "$python has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)"
  fi
  free_mib=$(df -Pk . | awk 'NR == 2 {print int($4 / 1024)}')
  if [ "$free_mib" -lt "$needed_mib" ]; then
    fail "$free_mib MiB are free here, the packages need $needed_mib MiB; free some, or clone elsewhere"
  fi
  if ! command -v "${CC:-cc}" >/dev/null 2>&1; then
    echo "mambad: warning: no C compiler (${CC:-cc}) was found: the slower kernels will be used;" \
      "install gcc or clang and run make again to change that" >&2
  fi
fi

if [ -n "$port" ] && [ "$port" != 0 ]; then
  if ! "$python" - "$port" <<'PY'
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    sys.exit(1)
PY
  then
    fail "port $port is in use; stop what listens there, or choose another: make serve PORT=8001"
  fi
fi
