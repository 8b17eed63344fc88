#!/bin/sh
# Runs fuzz targets on new inputs, one after the other, and stops at the first finding. `make fuzz` calls it:
#
#   tests/fuzz/run.sh BUILD INPUTS [TARGET ...]    default: all targets
#
# BUILD is a build folder with ORTHANT_FUZZ. New inputs that reach new code are kept in BUILD/corpus/TARGET. A finding
# is written to BUILD/TARGET-crash-*, -timeout-*, -oom-* or -leak-*.
set -eu
cd "$(dirname "$0")/../.."
build=$1
inputs=$2
shift 2
for target in ${*:-$(ls tests/fuzz/corpus)}; do
  mkdir -p "$build/corpus/$target"
  dictionary=tests/fuzz/dictionaries/$target.dict
  log=$build/$target.log
  printf '%s: ' "$target"
  if ! "$build/tests/fuzz/fuzz_$target" -runs="$inputs" -max_len=2048 -timeout=10 -rss_limit_mb=1024 \
    -malloc_limit_mb=256 -print_final_stats=1 $([ -f "$dictionary" ] && echo "-dict=$dictionary") -artifact_prefix="$build/$target-" \
    "$build/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 40 "$log"
    exit 1
  fi
  sed -n 's/stat::number_of_executed_units: \(.*\)/\1 inputs, no finding/p' "$log"
done
