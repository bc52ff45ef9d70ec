# The container image: `docker build .` makes the target `cpu`. docs/docker.md says how to run it.
#
#   base ── wheel          compiles the C kernels and builds the wheel, once for all targets
#    ├───── packages-cpu   fills /app from the lock, then adds the wheel; nothing of this stage is shipped but /app
#    └───── runtime ── cpu what every target shares, then /app
#
# A target for another device brings a lock of its own and its own packages-<device>, and ends like `cpu`:
# `FROM runtime AS <device>` and the COPY of its /app, on another BASE where the device's libraries need one.
#
# Build arguments:
#   BASE         an image with Python 3.11, for which the lock was made. The default is a tag, which can move.
#                Pin it: --build-arg BASE=python:3.11-slim-bookworm@sha256:<digest>
#   TORCH_INDEX  index with CPU builds of torch; empty where pip's own configuration names one
#   VERSION, REVISION  for the labels
# Secret, optional: `pip_conf`, a configuration of pip (mirror, proxy, certificates). It stays out of the image.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
ENV PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1

FROM base AS pip
ENV PIP_CACHE_DIR=/var/cache/pip \
    PIP_CONFIG_FILE=/run/secrets/pip_conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /pip

FROM pip AS wheel
# The compiler stays in this stage, so its newest version is as good as a pinned one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY deploy/image/requirements-build.txt deploy/image/
RUN --mount=type=secret,id=pip_conf --mount=type=cache,target=/var/cache/pip \
    /pip/bin/pip install --require-hashes -r deploy/image/requirements-build.txt
COPY LICENSE MANIFEST.in README.md pyproject.toml setup.py ./
COPY configs configs
COPY kernels kernels
COPY engine engine
COPY server server
# setup.py goes on without the C library where it can't be compiled; an image must not.
RUN /pip/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
    && test -s kernels/cpu/libmambad_cpu.so

FROM pip AS packages-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv --without-pip /app
COPY deploy/image/requirements-cpu.txt /
# What torch brings for compiling against it, and tests, are a quarter of it all.
RUN --mount=type=secret,id=pip_conf --mount=type=cache,target=/var/cache/pip \
    /pip/bin/pip --python /app/bin/python install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
      --only-binary :all: --require-hashes -r /requirements-cpu.txt \
    && torch="$(echo /app/lib/python3*/site-packages/torch)" \
    && rm -rf "$torch/include" "$torch/share" "$torch/test" \
    && find "$torch/bin" -mindepth 1 -maxdepth 1 ! -name torch_shm_manager -exec rm -rf {} + \
    && find "$torch/../sympy" "$torch/../networkx" -type d -name tests -prune -exec rm -rf {} +
COPY --from=wheel /wheels /wheels
RUN /pip/bin/pip --python /app/bin/python install --no-deps --no-index /wheels/*.whl \
    && /pip/bin/pip --python /app/bin/python check

FROM base AS runtime
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="mambad" \
      org.opencontainers.image.description="OpenAI-compatible HTTP daemon for language models with a recurrent state" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# HOME is where caches go, and /tmp is all that needs to be writable, by whatever user the container gets.
ENV PATH=/app/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    MAMBAD_HOST=0.0.0.0
COPY --chmod=0644 deploy/image/healthcheck.py /app/healthcheck.py
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-I", "/app/healthcheck.py"]
ENTRYPOINT ["mambad"]
CMD ["serve"]

# The last target is the one that `docker build .` makes.
FROM runtime AS cpu
COPY --from=packages-cpu /app /app
