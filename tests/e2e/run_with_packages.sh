#!/usr/bin/env bash
# Runs a test with programs that others wrote:
#   run_with_packages.sh PACKAGE.. -- COMMAND..
# The last argument of the command is the Python that has the packages. Exit
# status: the command's; 69 if the packages cannot be fetched for lack of a
# network.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
packages=()
while [[ $1 != -- ]]; do
  packages+=("$1")
  shift
done
shift
python=$("${here}/../../scripts/fleet_packages.sh" "${packages[@]}")
exec "$@" "${python}"
