# The worker with vLLM for NVIDIA GPUs. CUDA's libraries come inside the locked packages; the driver comes from the node.
#   docker build -f docker/worker.Dockerfile --build-arg PYTHON_DIGEST=sha256:… -t tailrace/worker:TAG .
# Models are not in the image: a volume at /models holds them (docs/operations.md).
ARG PYTHON_DIGEST

FROM docker.io/library/python:3.11-slim-bookworm@${PYTHON_DIGEST} AS packages
WORKDIR /src
COPY locks/tools.lock locks/requirements-engine-gpu.lock ./locks/
RUN python -m venv /tools \
    && /tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: -r locks/tools.lock \
    && python -m venv --without-pip /venv \
    && /tools/bin/uv pip install --no-cache --require-hashes --compile-bytecode --python /venv/bin/python -r locks/requirements-engine-gpu.lock
COPY pyproject.toml README.md ./
COPY gateway/ ./gateway/
COPY push/ ./push/
COPY worker/ ./worker/
COPY tailrace/ ./tailrace/
# A wheel of our own: its metadata holds the plug-in entry with which vLLM's processes end when the worker is killed.
RUN /tools/bin/python -c "from setuptools import build_meta; build_meta.build_wheel('/tmp')" \
    && /tools/bin/uv pip install --no-cache --no-deps --no-index --compile-bytecode --python /venv/bin/python /tmp/tailrace-*.whl

FROM docker.io/library/python:3.11-slim-bookworm@${PYTHON_DIGEST}
# Triton and torch.compile build kernels at run time and call a C compiler for it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages /venv /venv
WORKDIR /app
USER 10001:10001
EXPOSE 9000
CMD ["python", "-m", "worker"]
