# `make demo` in a container, on PyTorch's build for CPUs or for CUDA:
#   docker build --tag adaptive-mixer .                          docker run --rm adaptive-mixer
#   docker build --tag adaptive-mixer --build-arg DEVICE=cuda .  docker run --rm --gpus all --shm-size 1g adaptive-mixer
# The demo trains on the CPU in both, as its recipe has `use_cpu: true`; a recipe without that line takes the GPU:
#   docker run --rm --gpus all --volume "$PWD/runs:/adaptive-mixer/runs" adaptive-mixer .venv/bin/mixer train RECIPE.yaml
FROM python:3.11-slim

ARG DEVICE=cpu

RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*

WORKDIR /adaptive-mixer
COPY constraints.txt .
# PyTorch's own index has the CPU build; the package index has the CUDA build for Linux.
RUN case "$DEVICE" in \
        cpu) set -- --index-url https://download.pytorch.org/whl/cpu ;; \
        cuda) set -- ;; \
        *) echo "DEVICE is cpu or cuda, not '$DEVICE'" >&2; exit 1 ;; \
    esac \
    && python -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir "$@" "$(grep '^torch==' constraints.txt)"

COPY . .
# What the demo needs of the extras, not all that developers do; the stamp tells make so.
RUN .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt --editable ".[report,tasks]" \
    && touch .venv/.installed

CMD ["make", "demo"]
