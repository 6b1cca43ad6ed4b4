#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# On the machine with the card, in the folder that carry.sh made: this backend's own tests, the
# suite, text from the model, the benchmark; and, by name only, what is proven by doing it often. A
# short table last. Whole reports go to the folder that REPORTS names, ./reports where it names none.
#
#     ./run_on_device.sh [tests] [conformance] [text] [bench] [proof] [soak] [sanitize]
#
# The first four without a name. Minutes on one card: proof about 2, soak 4, sanitize about 4.
# ROWS="P1,P7" chooses rows of the benchmark; BUDGET=180s is the suite's time; JOBS=4 its workers and
# those of sanitize; TOOLS="memcheck" what sanitize runs, LIMIT=240 how many seconds each of them;
# SEED=7 moves what proof and soak draw; SOAK=240 are the soak's seconds; PLUGIN=cpu DRY=--dry tries
# proof, soak and sanitize on a machine without a card.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
reports=${REPORTS:-reports}
mkdir -p "$reports"
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export KVSPAN_TEST_PLUGINS="$PWD/plugins" KVSPAN_TEST_BIN="$PWD/bin" KVSPAN_TEST_DATA="$PWD/data"
parts=("$@")
[ ${#parts[@]} -eq 0 ] && parts=(tests conformance text bench)
summary=()
plugin="$PWD/plugins/kvspan-${PLUGIN:-cuda}.so"

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

# Answers to the two long recall prompts, streamed, with the bits of the resident run.
run_text() {
  local bytes status
  for bytes in 8192 32768; do
    timeout 300 bin/kvspan --plugin-dir plugins generate --plugin "${PLUGIN:-cuda}" --verify \
      --tokens 7 --model data/models/bytelm.gguf --prompt-file "data/prompts/recall-$bytes.txt" \
      --arena 25% --k-type q8_0 --v-type q4_0 --json "$reports/text-$bytes.json" \
      > "$reports/text-$bytes.txt" 2>&1
    status=$?
    note "text $bytes" $status "$(tail -n 1 "$reports/text-$bytes.txt" | tr -d '\r' | cut -c 1-100)"
  done
}

prove() { # <name> <seconds at most> <part,part>
  local name=$1 limit=$2 which=$3
  # shellcheck disable=SC2086 # DRY is an option or nothing
  timeout "$limit" bin/kvspan-cuda-proof --plugin "$plugin" --commit "$(cat commit)" ${DRY:-} \
    --parts "$which" --seed "${SEED:-1}" --seconds "${SOAK:-240}" --json "$reports/$name.json" \
    > "$reports/$name.txt" 2>&1
  local status=$?
  cat "$reports/$name.txt"
  note "$name" $status "$(grep -c '"result":"proven"' "$reports/$name.txt") proven, $(
    grep -c '"result":"failed"' "$reports/$name.txt") failed"
}

run_proof() {
  prove proof 400 cancellation,placement,kill
  timeout 120 bin/kvspan-numerics --plugin "$plugin" --commit "$(cat commit)" \
    --json "$reports/numerics.json" > "$reports/numerics.txt" 2>&1
  note numerics $? "$(tail -n 1 "$reports/numerics.txt")"
}

run_soak() {
  prove soak $((${SOAK:-240} + 120)) soak
}

# One worker under a tool, over the cases of one file; its logs are named like that file.
# racecheck has kernels of its own, where they were carried (carry.sh).
sanitize_cases() { # <tool> <compute-sanitizer> <file of cases>
  local plugin=$plugin own="$PWD/plugins/racecheck/kvspan-${PLUGIN:-cuda}.so"
  [ "$1" != racecheck ] || [ ! -e "$own" ] || plugin=$own
  timeout "${LIMIT:-240}" "$2" --tool "$1" --log-file "$3.$1.log" bin/kvspan-conformance --worker \
    --plugin "$plugin" --cases "$3" --effort "${EFFORT:-5}" \
    --retained '[{"kind":"thread","pattern":"*","most":64,"reason":"the tool"},
                 {"kind":"descriptor","pattern":"*","most":64,"reason":"the tool"},
                 {"kind":"mapping","pattern":"*","most":64,"reason":"the tool"}]' \
    > "$3.$1.txt" 2>&1
  echo $? > "$3.$1.status"
}

# Cases of its own, few and short: sanitize_cases.txt, shared out among JOBS workers. A tool's errors
# and failed cases count against it; what the tool itself keeps in the process does not.
run_sanitize() {
  local tool found status log selected executed failed errors part parts lines=()
  selected=$(wc -l < sanitize_cases.txt)
  found=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || true)}
  [ -x "$found" ] || found=/usr/local/cuda/bin/compute-sanitizer
  [ -x "$found" ] || found="$PWD/sanitizer/compute-sanitizer"
  if [ ! -x "$found" ]; then
    note sanitize 3 "no compute-sanitizer here: put it on PATH, in /usr/local/cuda/bin or ./sanitizer"
    return
  fi
  parts=$(mktemp -d)
  split -n "r/${JOBS:-4}" sanitize_cases.txt "$parts/cases."
  for tool in ${TOOLS:-memcheck synccheck racecheck}; do
    log="$reports/sanitize-$tool"
    for part in "$parts"/cases.??; do
      sanitize_cases "$tool" "$found" "$part" &
    done
    wait
    cat "$parts"/cases.??."$tool".txt > "$log.txt"
    cat "$parts"/cases.??."$tool".log > "$log.log"
    status=$(sort -n "$parts"/cases.??."$tool".status | tail -1)
    executed=$(grep -cE '^\[       OK|^\[  FAILED  \] [A-Za-z]+\.[A-Za-z]+ \(' "$log.txt")
    failed=$(grep -cE '^\[  FAILED  \] [A-Za-z]+\.[A-Za-z]+ \(' "$log.txt")
    # "ERROR SUMMARY: 2 errors", "RACECHECK SUMMARY: 9 hazards displayed (8 errors, 1 warning)"
    errors=$(grep -oE '(ERROR|RACECHECK) SUMMARY: [0-9]+' "$log.log" | grep -oE '[0-9]+$' \
      | awk '{ sum += $1 } END { if (NR) print sum }')
    # Which kernels a report is about, the most frequent first.
    grep -oE '[A-Za-z_:]+_kernel[A-Za-z_]*' "$log.log" | sort | uniq -c | sort -rn > "$log.kernels"
    lines+=("$(printf '{"tool": "%s", "status": %d, "executed": %d, "failed": %d, "errors": %s}' \
      "$tool" "$status" "$executed" "$failed" "${errors:-null}")")
    [ "$status" -eq 0 ] && [ "${errors:-1}" -ne 0 ] && status=1
    [ "$executed" -lt "$selected" ] && [ "$status" -eq 0 ] && status=3
    note "$tool" "$status" \
      "$executed of $selected cases executed, $failed failed, ${errors:-?} errors"
  done
  rm -r "$parts"
  printf '{"commit": "%s", "selected": %d, "tools": [%s]}\n' "$(cat commit)" \
    "$selected" "$(IFS=,; echo "${lines[*]}")" > "$reports/sanitize.json"
}

run_bench() {
  timeout 500 bin/kvspan-cuda-bench --plugin "$plugin" --commit "$(cat commit)" \
    ${ROWS:+--rows "$ROWS"} --seconds "${SECONDS_MAX:-440}" --json "$reports/bench.json" \
    | tee "$reports/bench.txt"
  note bench "${PIPESTATUS[0]}" "$(grep -c ' goal   ' "$reports/bench.txt") at goal, $(
    grep -c ' floor  ' "$reports/bench.txt") at floor, $(
    grep -c ' BELOW' "$reports/bench.txt") below, $(grep -c ' FAILED' "$reports/bench.txt") failed"
}

card=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm
[ -n "${DRY:-}" ] || nvidia-smi --query-gpu="$card" --format=csv,noheader
for part in "${parts[@]}"; do
  begin=$SECONDS
  "run_$part"
  echo "== $part: $((SECONDS - begin)) s"
done
printf '%s\n' "" "commit $(cat commit)" "${summary[@]}" | tee "$reports/summary.txt"
