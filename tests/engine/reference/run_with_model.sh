#!/usr/bin/env bash
# Runs a test program with the language model of scripts/fetch_model.sh.
# Exit status: the program's; 69 if the model cannot be fetched for lack of a
# network.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BLOCKMGR_MODEL=$("${here}/../../../scripts/fetch_model.sh")
BLOCKMGR_MODEL_ANSWERS=${here}/model_answers.json
export BLOCKMGR_MODEL BLOCKMGR_MODEL_ANSWERS
exec "$@"
