# Two images from one file: `service` (no torch) and `worker`. What they install is installed by the
# same `make install` that a developer runs, so it is tested wherever the tests run. The worker's has
# a runtime built in: what runs jobs, 1.7 GB (torch without NVIDIA's packages, and our stand-ins).
#   docker build --target service -t memgate-service .
#   docker build --target worker  -t memgate-worker .

# give it with its digest, as docs/security.md says: a tag is whatever its publisher makes it today
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Debian keeps only the newest version of a package: a pin would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE README.md Makefile pyproject.toml hatch_build.py constraints.txt ./
COPY docs/errors.md docs/errors.md
COPY memgate memgate
COPY service service
COPY worker worker

FROM build AS build-service
RUN make install VENV=/opt/memgate INSTALL='.[service,client,kubernetes]'

FROM build AS build-worker
RUN make install VENV=/opt/memgate INSTALL='.[worker]'
# from there, so that what was installed builds it
ARG RUNTIME=torch-2.14
WORKDIR /opt/memgate
ENV MEMGATE_RUNTIMES_DIR=/opt/memgate/runtimes
RUN bin/memgate runtimes install "$RUNTIME"

FROM ${PYTHON_IMAGE} AS base
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin memgate
ENV PATH=/opt/memgate/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001

FROM base AS worker
COPY --from=build-worker /opt/memgate /opt/memgate
ENV MEMGATE_RUNTIMES_DIR=/opt/memgate/runtimes
# it imports torch before it reports in
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-P", "-m", "memgate_worker.health"]
CMD ["python", "-P", "-m", "memgate_worker"]

FROM base AS service
COPY --from=build-service /opt/memgate /opt/memgate
# not loopback: callers need a key (MEMGATE_API_KEYS)
ENV MEMGATE_HOST=0.0.0.0 \
    MEMGATE_PORT=8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["python", "-c", \
    "import os; from urllib.request import urlopen; urlopen(f'http://127.0.0.1:{os.environ[\"MEMGATE_PORT\"]}/healthz', timeout=4)"]
CMD ["python", "-P", "-m", "memgate_service"]
