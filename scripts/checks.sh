# Checks that .ci/run and scripts/nightly.sh are made of. To be sourced, in the
# root of the project; finish_checks comes last.
# shellcheck shell=bash

exec </dev/null
passed=0
failed=0
logs=$(mktemp --directory)
trap 'rm -rf "${logs}"' EXIT

# Adds $1 to what is said at the end.
say_at_end() {
  echo "$1" >>"${logs}/summary"
}

# Runs scripts/test.sh, and adds up its last line; a script that ends without one
# has failed.
run_tests() {
  local log=${logs}/tests more_passed=0 more_failed=1
  scripts/test.sh --werror "$@" 2>&1 |
    sed --unbuffered --regexp-extended \
      's/^[0-9]+ passed, [0-9]+ failed$/test.sh: &/' |
    tee "${log}" || true
  read -r more_passed more_failed < <(
    sed -n 's/^test.sh: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "${log}"
  ) || true
  passed=$((passed + ${more_passed:-0}))
  failed=$((failed + ${more_failed:-1}))
  sed -n '/^SKIPPED /p; /^FAILED /p; /^test.sh: .* s to test$/p' "${log}" \
    >>"${logs}/summary"
}

# check NAME COMMAND..: one test more.
check() {
  local name=$1 began=${SECONDS}
  shift
  echo "== ${name}"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    say_at_end "FAILED ${name}"
  fi
  say_at_end "${name}: $((SECONDS - began)) s"
}

# run_tidy OPTION..: scripts/tidy.sh. A file with findings is a failed test.
run_tidy() {
  local log=${logs}/tidy clean bad began=${SECONDS}
  echo "== clang-tidy"
  scripts/tidy.sh "$@" 2>&1 | tee "${log}" || true
  read -r clean bad < <(
    sed -n 's/^\([0-9]*\) clean, \([0-9]*\) with findings, .*/\1 \2/p' "${log}"
  ) || true
  say_at_end "clang-tidy: ${clean:-0} clean, ${bad:-1} with findings:$(
    ) $((SECONDS - began)) s"
  failed=$((failed + ${bad:-1}))
}

# same_traces PRESET PRESET: the same seeds were the same runs of the simulator,
# whatever build ran them. The tests of both presets have run, and have
# left the hashes of their runs.
same_traces() {
  local one=build/$1/tests/sim other=build/$2/tests/sim hash found=0
  for hash in "${one}"/*.hash; do
    [[ -e ${hash} ]] || continue
    echo "${hash##*/}: $(cat "${hash}")"
    cmp "${hash}" "${other}/${hash##*/}" || return 1
    found=1
  done
  ((found))
}

# The end of a long log is what is read first.
finish_checks() {
  cat "${logs}/summary"
  echo "${SECONDS} s in all"
  echo "${passed} passed, ${failed} failed"
  ((passed > 0 && failed == 0))
}
