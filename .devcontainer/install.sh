#!/usr/bin/env bash
# Installs the course into the Python that is active: dev container, Dockerfile, Binder and CI all call this one script.
# `uv` takes PyTorch's small build, without CUDA; TORCH_BACKEND=... chooses another, TORCH_BACKEND= the index's own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python}
backend=${TORCH_BACKEND-cpu}
pins=requirements.txt                       # a published course: its last line is the course itself
itself=()
if [ ! -f "$pins" ]; then pins=requirements-cpu.txt itself=(--no-deps -e .); fi

"$python" -m pip install --quiet --disable-pip-version-check 'uv>=0.7.14'
"$python" -m uv pip install --python "$("$python" -c 'import sys; print(sys.executable)')" \
    ${backend:+--torch-backend="$backend"} -r "$pins"
if [ ${#itself[@]} -gt 0 ]; then
    "$python" -m uv pip install --python "$("$python" -c 'import sys; print(sys.executable)')" "${itself[@]}"
fi
"$python" -m hw_utils doctor || echo "Installed; see the lines that begin with FIX."
