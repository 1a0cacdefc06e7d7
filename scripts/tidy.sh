#!/usr/bin/env bash
# Runs clang-tidy on what changed. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where nothing says what a change starts from, as in a clone of main: this many
# commits. One would pass over all but the last commit of a change.
readonly default_commits=10
export file_seconds=300

usage() {
  cat <<HELP
Usage: scripts/tidy.sh [OPTION..] [FILE..]

Runs clang-tidy on each FILE (.cc). Without one: on the sources, and those of the
headers, that changed since COMMIT or are not committed yet, the newest change
first. Takes 5 to 100 s per file; scripts/setup.sh installs what it needs.

Options:
  --since COMMIT  where the change begins. Default: where it left origin/main;
                  where that is not known, ${default_commits} commits ago
  --seconds N     begin no new file after N seconds. Default: no limit
  --all           every source of the project
  --quick         without clang's analyzer, which takes most of the time
  --headers       no clang-tidy: compile every installed header by itself
  -h, --help      print this

Prints what is found, and at the end "N clean, N with findings, of N files".
Exit status: 0 if nothing was found, 1 otherwise, 2 for a wrong command line.

Examples:
  scripts/tidy.sh                         # before a commit
  scripts/tidy.sh tests/e2e/line.cc
HELP
}

wrong_usage() {
  echo "tidy.sh: $*" >&2
  echo "More: scripts/tidy.sh --help" >&2
  exit 2
}

since=
all=0
headers_only=0
export checks=
seconds=$((24 * 3600))
selected=()

parse_arguments() {
  while (($# > 0)); do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --since)
        (($# >= 2)) || wrong_usage "$1 needs a commit"
        since=$(git rev-parse --verify --quiet "$2^{commit}") ||
          wrong_usage "--since: no such commit: $2"
        shift
        ;;
      --seconds)
        [[ ${2:-} =~ ^[0-9]+$ ]] ||
          wrong_usage "--seconds: expected a number, got '${2:-}'"
        seconds=$2
        shift
        ;;
      --all) all=1 ;;
      --quick) checks=-clang-analyzer-* ;;
      --headers) headers_only=1 ;;
      -*) wrong_usage "unknown option: $1" ;;
      *)
        [[ $1 == *.cc && -f $1 ]] || wrong_usage "not a source (.cc): $1"
        selected+=("$(realpath --relative-to=. "$1")")
        ;;
    esac
    shift
  done
}

# The commit before the change.
base_commit() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null) || base=
  if [[ -z ${base} || ${base} == "$(git rev-parse HEAD)" ]]; then
    base=$(git rev-parse --verify --quiet "HEAD~${default_commits}") ||
      base=$(git rev-list --max-parents=0 HEAD | tail --lines=1)
  fi
  echo "${base}"
}

changed_files() {
  git ls-files --modified --others --exclude-standard
  git diff --name-only --cached
  git log --format= --name-only "${since:-$(base_commit)}..HEAD"
}

files_to_check() {
  if ((all)); then
    git ls-files '*.cc'
  elif ((${#selected[@]} > 0)); then
    printf '%s\n' "${selected[@]}"
  else
    changed_files | sed -n 's/\.\(cc\|h\)$/.cc/p' | awk '!seen[$0]++'
  fi
}

# Those that this build compiles; for others there are no flags.
compiled() {
  local file
  while read -r file; do
    if [[ -f ${file} ]] && grep --quiet --fixed-strings "/${file}\"" \
      build/tidy/compile_commands.json; then
      echo "${file}"
    fi
  done
}

check_one() {
  local file=$1 output status=0
  ((EPOCHSECONDS < deadline)) || return 0
  # The machine is slow, or its analyser never ends: that is no finding.
  output=$(timeout "${file_seconds}" \
    clang-tidy -p build/tidy --quiet ${checks:+"--checks=${checks}"} "${file}" \
    2>/dev/null) || status=$?
  if ((status == 124)); then
    echo "${file}: not checked, clang-tidy took more than ${file_seconds} s"
  elif ((status == 0)); then
    echo "${file}" >>"${logs}/clean"
  else
    echo "${file}" >>"${logs}/bad"
    echo "${output:-${file}: clang-tidy failed and said nothing}"
  fi
}

# The flags, a command for every file, and the headers that are generated. Not the
# microbenchmarks: what their macros expand to is no sight.
configure() {
  local log=${logs}/configure headers
  if ! cmake --preset clang -B build/tidy -DCMAKE_UNITY_BUILD=OFF \
    -DCMAKE_VERIFY_INTERFACE_HEADER_SETS=ON -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
    >"${log}" 2>&1; then
    cat "${log}" >&2
    return 1
  fi
  mapfile -t headers < <(ninja -C build/tidy -t targets all |
    sed -n 's/^\(proto\/.*\.pb\.h\):.*/\1/p')
  if ! ninja -C build/tidy "${headers[@]}" >"${log}" 2>&1; then
    cat "${log}" >&2
    return 1
  fi
}

main() {
  parse_arguments "$@"
  logs=$(mktemp --directory)
  trap 'rm -rf "${logs}"' EXIT
  configure
  if ((headers_only)); then
    # ccache preprocesses what it does not have, for as long as a header takes.
    CCACHE_DISABLE=1 ninja -C build/tidy all_verify_interface_header_sets
    return
  fi
  deadline=$((EPOCHSECONDS + seconds))
  export deadline logs
  export -f check_one
  touch "${logs}/clean" "${logs}/bad"
  files_to_check | compiled >"${logs}/files"
  xargs --no-run-if-empty --max-args=1 --max-procs="$(nproc)" \
    bash -c 'check_one "$1"' check_one <"${logs}/files"
  local bad
  bad=$(wc -l <"${logs}/bad")
  echo "$(wc -l <"${logs}/clean") clean, ${bad} with findings," \
    "of $(wc -l <"${logs}/files") files"
  ((bad == 0))
}

main "$@"
