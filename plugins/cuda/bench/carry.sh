#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts what a machine with a card needs into one folder: plugins, tool, suite, benchmark, tests, the
# test model, and run_on_device.sh. Everything is built already (preset cuda, and its targets
# kvspan-cuda-bench, kvspan-cuda-proof and kvspan-numerics); nothing is compiled there.
#
#     plugins/cuda/bench/carry.sh build/cuda FOLDER
set -euo pipefail

build=$(realpath "$1")
folder=$2
root=$(realpath "$(dirname "$0")/../../..")

rm -rf "$folder"
mkdir -p "$folder"/{bin,plugins,tests,lib,data/models,data/prompts}
for program in kvspan kvspan-conformance kvspan-cuda-bench kvspan-cuda-proof kvspan-numerics; do
  strip -o "$folder/bin/$program" "$build/bin/$program"
done
for plugin in cuda cpu; do
  strip -o "$folder/plugins/kvspan-$plugin.so" "$build/plugins/kvspan-$plugin.so"
done
for test in "$build"/tests/cuda_*_test; do
  strip -o "$folder/tests/$(basename "$test")" "$test"
done
# Kernels that racecheck can follow (preset cuda-racecheck), where they were built.
if [ -e "$build-racecheck/plugins/kvspan-cuda.so" ]; then
  mkdir "$folder/plugins/racecheck"
  strip -o "$folder/plugins/racecheck/kvspan-cuda.so" "$build-racecheck/plugins/kvspan-cuda.so"
fi
# Libraries that the tool and the cpu backend name and another distribution may lack.
for library in libfmt.so.9 libhwy.so.1; do
  found=$(ldconfig -p | sed -n "s|.*$library .* => ||p" | head -1)
  strip -o "$folder/lib/$library" "$(realpath "$found")"
done
cp "$root"/data/models/bytelm.gguf "$folder/data/models/"
cp "$root"/data/prompts/*.txt "$folder/data/prompts/"
cp "$root"/plugins/cuda/{retained.json,bench/sanitize_cases.txt} "$folder/"
install -m 755 "$root"/plugins/cuda/bench/{run_on_device.sh,offload_peers.py} "$folder/"
git -C "$root" describe --always --dirty > "$folder/commit"
du -sh "$folder"
