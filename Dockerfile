# CPU image, with the index of CPU wheels given by the builder:
#   docker build --build-arg TORCH_INDEX_URL=... -t moss-stream .
# CUDA image: leave TORCH_INDEX_URL out (the default index has CUDA wheels for Linux), run with --gpus all.
#   docker run --rm -v "$PWD:/data" moss-stream transcribe recording.flac

ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

ARG TORCH_INDEX_URL=""
ARG TORCH_VERSION=2.13.0

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==${TORCH_VERSION}"

COPY . /src
RUN pip install /src && rm -rf /src

RUN useradd --create-home --uid 10001 moss
USER moss
WORKDIR /data
# Compiles what is compiled for the CPU; on another kind of CPU it is compiled again.
RUN moss-stream doctor

ENTRYPOINT ["moss-stream"]
CMD ["--help"]
