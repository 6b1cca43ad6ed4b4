#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# On the machine with the card, in the folder that carry.sh made: this backend's own tests, the
# suite, text from the model, the benchmark; a short table last. Whole reports go to the folder
# that REPORTS names, ./reports where it names none.
#
#     ./run_on_device.sh [tests] [conformance] [text] [bench]      all four without a name
#
# ROWS="P1,P7" chooses rows of the benchmark; BUDGET=180s is the suite's time; JOBS=4 its workers.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
reports=${REPORTS:-reports}
mkdir -p "$reports"
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export KVSPAN_TEST_PLUGINS="$PWD/plugins" KVSPAN_TEST_BIN="$PWD/bin" KVSPAN_TEST_DATA="$PWD/data"
parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=(tests conformance text bench)
summary=()
plugin="$PWD/plugins/kvspan-cuda.so"

note() { # <part> <status> <text>
  summary+=("$(printf '%-12s %-4s %s' "$1" "$([ "$2" -eq 0 ] && echo ok || echo "$2")" "$3")")
}

run_tests() {
  local status=0
  for test in tests/cuda_*_test; do
    timeout 120 "$test" >> "$reports/tests.log" 2>&1 || { status=$?; echo "$test: $status"; }
  done
  note tests $status "$(grep -cE '^\[       OK' "$reports/tests.log") ok, $(
    grep -cE '^\[  FAILED' "$reports/tests.log") failed, $(
    grep -cE '^\[  SKIPPED' "$reports/tests.log") skipped"
}

run_conformance() {
  timeout 540 bin/kvspan-conformance "$plugin" --jobs "${JOBS:-4}" --budget "${BUDGET:-240s}" \
    --timeout 60s --retained retained.json --quiet --out "$reports/suite" > "$reports/suite.log" 2>&1
  local status=$?
  tail -n 25 "$reports/suite.log"
  tar -C "$reports" -czf "$reports/suite.tar.gz" suite && rm -r "$reports/suite"
  note conformance $status "$(tail -n 1 "$reports/suite.log")"
}

run_text() {
  timeout 300 bin/kvspan --plugin-dir plugins generate --plugin cuda --verify --tokens 7 \
    --model data/models/bytelm.gguf --prompt-file data/prompts/recall-8192.txt --arena 25% \
    --k-type q8_0 --v-type q4_0 --json "$reports/text.json" > "$reports/text.txt" 2>&1
  local status=$?
  note text $status "$(tail -n 1 "$reports/text.txt" | tr -d '\r' | cut -c 1-100)"
}

run_bench() {
  timeout 500 bin/kvspan-cuda-bench --plugin "$plugin" --commit "$(cat commit)" \
    ${ROWS:+--rows "$ROWS"} --seconds "${SECONDS_MAX:-440}" --json "$reports/bench.json" \
    | tee "$reports/bench.txt"
  note bench "${PIPESTATUS[0]}" "$(grep -c ' goal   ' "$reports/bench.txt") at goal, $(
    grep -c ' floor  ' "$reports/bench.txt") at floor, $(
    grep -c ' BELOW' "$reports/bench.txt") below, $(grep -c ' FAILED' "$reports/bench.txt") failed"
}

nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm \
  --format=csv,noheader
for part in "${parts[@]}"; do
  begin=$SECONDS
  "run_$part"
  echo "== $part: $((SECONDS - begin)) s"
done
printf '%s\n' "" "commit $(cat commit)" "${summary[@]}" | tee "$reports/summary.txt"
