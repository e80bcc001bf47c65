# The course in a container: docker build -t course . && docker run --rm -p 8888:8888 course
# The versions are those of requirements.txt (of a published course) or requirements-cpu.txt; install.sh chooses.
FROM python:3.11-slim AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make procps bubblewrap \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 student \
    && python -m venv /opt/course \
    && chown -R student:student /opt/course
ENV PATH=/opt/course/bin:$PATH VIRTUAL_ENV=/opt/course
USER student
WORKDIR /home/student/course

FROM base AS course
COPY --chown=student:student . .
RUN UV_NO_CACHE=1 .devcontainer/install.sh
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"]
