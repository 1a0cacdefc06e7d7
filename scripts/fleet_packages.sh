#!/usr/bin/env bash
# Fetches the gateway, clients and indexers that others wrote. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/fleet_packages.sh [--help] [PACKAGE..]

Prints the path of a Python that has the packages of scripts/fleet_packages.txt
(of fixed versions), or those named alone. What is missing is fetched with pip, to
build/fleet.

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
missing=()
for package in "${wanted[@]}"; do
  grep --quiet --fixed-strings --line-regexp "${package}" <<<"${installed}" ||
    missing+=("${package}")
done
if ((${#missing[@]} > 0)); then
  echo "fleet_packages.sh: fetching ${missing[*]}" >&2
  if ! "${python}" -m pip install --retries 2 "${missing[@]}" \
    >"${folder}/log" 2>&1; then
    cat "${folder}/log" >&2
    if grep --quiet "connection broken" "${folder}/log" &&
      grep --quiet "from versions: none" "${folder}/log"; then
      echo "fleet_packages.sh: the package index cannot be reached" >&2
      exit 69
    fi
    die "pip could not fetch ${missing[*]}"
  fi
fi
echo "${python}"
