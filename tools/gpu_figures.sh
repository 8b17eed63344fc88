#!/bin/sh
# Builds for GPUs, runs the tests that need one, and measures. Needs nvcc, CMake, ninja, g++ and a python3 with torch for
# CUDA. The measurements take about 10 minutes on one H200.
#
#   tools/gpu_figures.sh FOLDER [PROFILE]    PROFILE: of the GPU, such as h200-8x; by default from its name
#
# FOLDER then holds tests.txt, kernels.csv, gpu-train.jsonl and gpu-steps.jsonl (benchmarks/gpu/RESULTS.md), and
# figures.json and figures.md with all of it. A part that fails is named at the end, and the others still run.
set -eu
[ $# -ge 1 ] || { sed -n 2,8p "$0" | cut -c 3-; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
# The profile of 8 such GPUs whose name is a word of the device's name, as h200-8x is for NVIDIA H200.
profile=${2-}
for word in $(echo "$device" | tr '[:upper:]' '[:lower:]'); do
  [ -n "$profile" ] || [ ! -f "src/hardware/profiles/$word-8x.toml" ] || profile=$word-8x
done
[ -f "src/hardware/profiles/$profile.toml" ] || {
  echo "no profile is known for $device; name one of src/hardware/profiles: $0 FOLDER PROFILE" >&2
  exit 2
}
peak=$(sed -n '/^\[peak_flop_per_s\]/,/^\[/s/^bfloat16 *= *\([0-9.e+]*\).*/\1/p' "src/hardware/profiles/$profile.toml")
machine="$device, driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1), $(nproc) cores, \
$(python3 -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda)'), $(date +%Y-%m-%d)"
echo "$machine; profile $profile, peak $peak FLOP/s"

failed=
part() {
  text=$1
  shift
  started=$(date +%s)
  "$@" || failed="$failed
  $text"
  echo "$text: $(($(date +%s) - started)) s"
}
gpu_tests() {
  ctest --test-dir build-cuda -L gpu --output-on-failure --no-tests=error >"$folder/tests.txt" 2>&1
}
kernels() {
  PYTORCH_ALLOC_CONF=expandable_segments:True python3 benchmarks/gpu/kernels.py --peak "$peak" --products 60 \
    >"$folder/kernels.csv"
}

part 'building' make build CUDA=1 BUILD=build-cuda
[ -z "$failed" ] || exit 1
part 'tests that need a GPU (tests.txt)' gpu_tests
part 'kernels (kernels.csv)' kernels
part 'steps of Orthant and PyTorch in turns' python3 benchmarks/gpu/turns.py "$folder/gpu"
part 'figures.md and figures.json' python3 benchmarks/gpu/figures.py "$folder" --hardware "$profile" --device "$device" \
  --machine "$machine"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
