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

  dev      everyday build: clang, with its thread-safety analysis, optimised, asserts
           on; a part of the cases of random tests
  dev-all  dev with all of them, planted bugs and microbenchmarks
  release  what users get: gcc, no asserts, and every header stands alone
  asan     clang, AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer;
           libraries and the daemon, without kernels
  asan-all asan of all programs, and of the kernels, CUDA's under the emulator
  tsan     gcc, ThreadSanitizer: what has threads, without what speaks gRPC
  clang    clang, without sanitizers

Options:
  --nightly              run also what takes minutes: more seeds, packaging
                         (label nightly)
  --label REGEX          run only tests whose CTest label matches
  --exclude-label REGEX  leave out tests whose CTest label matches
  --no-setup             do not look for missing packages
  --werror               compiler warnings are errors
  -h, --help             print this

Labels in use: nightly (takes minutes), cases (nightly: random tests with all their
cases), once (nightly: says the same in every preset), emulator (CUDA kernels without
a GPU), ptx (what nvcc makes of them, interpreted), gpu (on one; listed where there is
one), model (with a language model, which scripts/fetch_model.sh fetches).
A line is a test program or a part of one; into a terminal all are shown,
elsewhere those that did not pass (all are in build/PRESET/ctest.log). What failed,
and what skipped itself because something that it needs is not there, is listed again
at the end, test by test, and the last line counts the single tests of all presets:
"N passed, N failed". A preset that does not configure or
build counts as one failure, and so does a program that crashes. A test alone:
build/PRESET/bin/PROGRAM --gtest_filter=NAME. Exit status: 0
if something passed and nothing failed, 1 otherwise, 2 for a wrong command line.

Examples:
  scripts/test.sh                         # everyday
  scripts/test.sh release --label ptx     # one kind
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
label_asked=0

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
          label_asked=1
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
skips=()

# Adds up what scripts/test_results.py counts in the build folder of preset $1.
count_results() {
  local preset=$1 line
  local good=0 bad=0
  while read -r line; do
    case "${line}" in
      FAILED*) failures+=("${preset}: ${line#FAILED }") ;;
      SKIPPED*) skips+=("${preset}: ${line#SKIPPED }") ;;
      *) read -r good _ bad _ <<<"${line}" ;;
    esac
  done < <(scripts/test_results.py "build/${preset}/ctest.xml" \
    "build/${preset}/gtest")
  passed=$((passed + good))
  failed=$((failed + bad))
}

fail() {
  failed=$((failed + 1))
  failures+=("$1")
}

# A terminal shows each test of CTest, a file those that did not pass; of these,
# which are parts of programs, only what failed in them.
show_tests() {
  local passed='^\[( RUN|       OK|-+| *PASSED| *=+)'
  if [[ ! -t 1 ]]; then
    passed+='|^ +Start +[0-9]+: | Passed +[0-9.]+ sec'
  fi
  grep --line-buffered --invert-match --extended-regexp "${passed}" || true
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
  rm --force --recursive "build/${preset}/gtest" "build/${preset}/ctest.xml"
  # One more than there are cores: the daemon's tests wait for much of their time.
  "${under[@]}" ctest --preset "${preset}" --parallel "$(($(nproc) + 1))" \
    --output-junit ctest.xml --test-output-truncation middle \
    "${ctest_options[@]}" 2>&1 | tee "${log}" | show_tests || status=$?
  echo "test.sh: ${preset}: $((built - began)) s to build," \
    "$((SECONDS - built)) s to test"
  # Without a test to run, which the presets call a failure, unless a label was
  # asked for that this preset has not.
  if ((label_asked)) && grep --quiet "No tests were found" "${log}"; then
    return
  fi
  local failed_before=${failed}
  count_results "${preset}"
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
  local skip failure
  for skip in "${skips[@]}"; do echo "SKIPPED ${skip}"; done
  for failure in "${failures[@]}"; do echo "FAILED ${failure}"; done
  echo "${passed} passed, ${failed} failed"
  ((passed > 0 && failed == 0))
}

main "$@"
