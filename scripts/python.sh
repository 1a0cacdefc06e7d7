#!/usr/bin/env bash
# Builds the Python package and runs its tests. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: scripts/python.sh [OPTION..]

Makes build/python/venv, installs the pinned packages of python/requirements.txt
there (from the package index), builds the wheel into it and runs tests/python.

Options:
  --build-tree FOLDER  link the libraries that this build folder has, for example
                       build/dev, and compile without optimisation; without it,
                       the libraries are compiled, as `pip install .` does
  --types              check the examples against the type stubs, too (mypy)
  -h, --help           print this
HELP
}

build_tree=
types=0
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --build-tree)
      [[ -f ${2:-}/blockmgr_libraries.cmake ]] || {
        echo "python.sh: no build folder of blockmgr: '${2:-}'" >&2
        exit 2
      }
      build_tree=$(realpath "$2")
      shift
      ;;
    --types) types=1 ;;
    *)
      echo "python.sh: unknown argument: $1 (see scripts/python.sh --help)" >&2
      exit 2
      ;;
  esac
  shift
done

venv=build/python/venv
requirements=python/requirements.txt
if ! cmp --silent "${requirements}" "${venv}/requirements.txt"; then
  rm --force --recursive "${venv}"
  python3 -m venv "${venv}"
  if ! "${venv}/bin/pip" install --quiet --disable-pip-version-check \
    --requirement "${requirements}"; then
    echo "python.sh: could not fetch the packages of ${requirements}" >&2
    exit 1
  fi
  cp "${requirements}" "${venv}/requirements.txt"
fi

settings=()
if [[ -n ${build_tree} ]]; then
  settings=(-Cbuild-dir=build/python/tree
    -Ccmake.define.BLOCKMGR_BUILD_TREE="${build_tree}"
    -Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0)
fi
"${venv}/bin/pip" install --quiet --disable-pip-version-check \
  --no-build-isolation --no-deps --force-reinstall "${settings[@]}" .
"${venv}/bin/python" -m pytest --quiet tests/python
if ((types)); then
  "${venv}/bin/pip" install --quiet --disable-pip-version-check mypy==1.18.2
  "${venv}/bin/python" -m mypy tests/python/types_example.py
fi
