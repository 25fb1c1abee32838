# Gateway, push, the topics command, pipelines, and a worker with the scripted engine: everything that needs no model engine.
#   docker build -f docker/service.Dockerfile --build-arg PYTHON_DIGEST=sha256:… --build-arg NODE_DIGEST=sha256:… -t tailrace/service:TAG .
# Base images are named by digest, without a default: look the digests up before the build.
ARG PYTHON_DIGEST
ARG NODE_DIGEST

FROM docker.io/library/node:22-bookworm-slim@${NODE_DIGEST} AS page
WORKDIR /src
COPY frontend/package.json frontend/package-lock.json ./
# No install script of a package may run, because every user loads the result.
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY frontend/ ./
RUN npm run build

FROM docker.io/library/python:3.11-slim-bookworm@${PYTHON_DIGEST} AS packages
WORKDIR /src
COPY locks/tools.lock locks/requirements.lock ./locks/
RUN python -m venv /tools \
    && /tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r locks/tools.lock \
    && python -m venv --without-pip /venv \
    && /tools/bin/uv pip install --no-cache --require-hashes --only-binary=:all: --compile-bytecode --python /venv/bin/python -r locks/requirements.lock
COPY pyproject.toml README.md ./
COPY gateway/ ./gateway/
COPY push/ ./push/
COPY worker/ ./worker/
COPY pipelines/ ./pipelines/
COPY tailrace/ ./tailrace/
# Two wheels of our own, `tailrace` and `tailrace-pipelines`: metadata holds the `tailrace` command and the engine's plug-in entry.
RUN for folder in . pipelines; do \
      (cd $folder && /tools/bin/python -c "from setuptools import build_meta; build_meta.build_wheel('/tmp')") || exit 1; \
    done \
    && /tools/bin/uv pip install --no-cache --no-deps --no-index --compile-bytecode --python /venv/bin/python /tmp/tailrace*.whl

FROM docker.io/library/python:3.11-slim-bookworm@${PYTHON_DIGEST}
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
COPY --from=packages /venv /venv
COPY --from=page /src/dist /app/frontend/dist
COPY --from=page /src/dist-admin /app/frontend/dist-admin
WORKDIR /app
USER 10001:10001
EXPOSE 8000 8001 9000
CMD ["python", "-m", "gateway"]
