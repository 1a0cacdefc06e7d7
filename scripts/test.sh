#!/usr/bin/env bash
# Sets up, configures, builds and tests blockmgr. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The test presets are the ones CMakePresets.json has.
presets() {
  sed -n 's/.*"configurePreset": *"\([^"]*\)".*/\1/p' CMakePresets.json | sort -u
}

usage() {
  cat <<HELP
Usage: scripts/test.sh [OPTION..] [PRESET..]

Installs what is missing, then configures, builds and tests each PRESET in
build/PRESET. Without one: dev. Presets: $(presets | xargs).

  dev      everyday build: optimised, asserts on
  release  what users get: no asserts, and every header stands alone
  asan     clang, with its thread-safety analysis, AddressSanitizer, LeakSanitizer
           and UndefinedBehaviorSanitizer
  asan-all asan, with blockmgr-evict and the CUDA kernels under the emulator
  tsan     ThreadSanitizer: what has threads, without what speaks gRPC
  clang    clang, without sanitizers

Options:
  --nightly              run also what takes minutes: longer random runs, more
                         seeds, packaging (label nightly)
  --label REGEX          run only tests whose CTest label matches
  --exclude-label REGEX  leave out tests whose CTest label matches
  --no-setup             do not look for missing packages
  --werror               compiler warnings are errors
  -h, --help             print this

Labels in use: nightly (takes minutes), emulator (CUDA kernels without a GPU), ptx
(what nvcc makes of them, interpreted), gpu (on one; listed where there is one).
Into a terminal every test is a line, elsewhere only those that did not pass
(all are in build/PRESET/ctest.log). What failed is listed again at the end,
and the last line counts the tests of all presets: "N passed, N failed". A
preset that does not configure or build counts as one failure. Exit status: 0
if something passed and nothing failed, 1 otherwise, 2 for a wrong command line.

Examples:
  scripts/test.sh                         # everyday
  scripts/test.sh --label ptx             # one kind
  scripts/test.sh asan tsan               # before a change of ownership or threads
HELP
}

wrong_usage() {
  echo "test.sh: $*" >&2
  echo "Presets: $(presets | xargs). More: scripts/test.sh --help" >&2
  exit 2
}

selected=()
ctest_options=()
excluded=(nightly)  # labels
werror=OFF
setup=1

parse_arguments() {
  while (($# > 0)); do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --label | --exclude-label)
        (($# >= 2)) || wrong_usage "$1 needs a regular expression"
        if [[ $1 == --label ]]; then
          ctest_options+=(--label-regex "$2")
        else
          excluded+=("$2")
        fi
        shift
        ;;
      --nightly) excluded=("${excluded[@]:1}") ;;
      --no-setup) setup=0 ;;
      --werror) werror=ON ;;
      -*) wrong_usage "unknown option: $1" ;;
      *)
        presets | grep --quiet --line-regexp --fixed-strings -- "$1" ||
          wrong_usage "unknown preset: $1"
        selected+=("$1")
        ;;
    esac
    shift
  done
  if ((${#selected[@]} == 0)); then selected=(dev); fi
  # CTest leaves out what matches all of several options.
  if ((${#excluded[@]} > 0)); then
    ctest_options+=(--label-exclude "$(IFS='|' && echo "${excluded[*]}")")
  fi
}

passed=0
failed=0
failures=()

# Adds up CTest's summary, found in the log named by $1. CTest counts a skipped
# test as one of the passed; we do not. $2 is the preset.
count_results() {
  local log=$1 preset=$2 bad total skipped
  local summary='tests passed, \([0-9]*\) tests failed out of \([0-9]*\)'
  read -r bad total < <(
    sed -n "s/.*${summary}.*/\1 \2/p" "${log}" | tail --lines=1
  ) || return 1
  skipped=$(grep --count '\*\*\*Skipped ' "${log}") || true
  passed=$((passed + total - bad - skipped))
  failed=$((failed + bad))
  local name
  while read -r name; do failures+=("${preset}: ${name}"); done < <(
    sed '1,/^The following tests FAILED:/d' "${log}" |
      sed -n 's/^[[:space:]]*[0-9]* - \(.*\) (.*)[^()]*$/\1/p'
  )
}

fail() {
  failed=$((failed + 1))
  failures+=("$1")
}

# A terminal shows each test, a file those that did not pass.
show_tests() {
  if [[ -t 1 ]]; then
    cat
  else
    grep --line-buffered --invert-match --extended-regexp \
      '^ +Start +[0-9]+: | Passed +[0-9.]+ sec' || true
  fi
}

test_preset() {
  local preset=$1 log status=0 began=${SECONDS}
  local under=()
  echo "== ${preset}"
  if ! cmake --preset "${preset}" -DCMAKE_COMPILE_WARNING_AS_ERROR="${werror}" ||
    ! cmake --build --preset "${preset}" --parallel "$(nproc)"; then
    fail "${preset}: does not build"
    return
  fi
  local built=${SECONDS}
  # ThreadSanitizer of these compilers cannot live with much address-space
  # randomisation, which newer kernels have.
  if [[ ${preset} == tsan ]] && setarch --addr-no-randomize true 2>/dev/null; then
    under=(setarch --addr-no-randomize)
  fi
  log=build/${preset}/ctest.log
  "${under[@]}" ctest --preset "${preset}" --parallel "$(nproc)" \
    "${ctest_options[@]}" 2>&1 | tee "${log}" | show_tests || status=$?
  echo "test.sh: ${preset}: $((built - began)) s to build," \
    "$((SECONDS - built)) s to test"
  local failed_before=${failed}
  # Without a summary no test was there to run, which is a failure (the presets
  # tell CTest so), unless a label was asked for that this preset has not.
  if ! count_results "${log}" "${preset}" && ((${#ctest_options[@]} > 0)) &&
    grep --quiet "No tests were found" "${log}"; then
    return
  fi
  if ((status != 0 && failed == failed_before)); then
    fail "${preset}: ctest ended with status ${status}"
  fi
}

main() {
  parse_arguments "$@"
  if ((setup)); then scripts/setup.sh; fi
  local preset
  for preset in "${selected[@]}"; do test_preset "${preset}"; done
  if ((passed == 0 && failed == 0)); then
    echo "test.sh: no test ran" >&2
  fi
  local failure
  for failure in "${failures[@]}"; do echo "FAILED ${failure}"; done
  echo "${passed} passed, ${failed} failed"
  ((passed > 0 && failed == 0))
}

main "$@"
