#!/bin/sh
# Builds my-plugin.wasm: the script with Python in one component.
set -eu
cd "$(dirname "$0")"

command -v componentize-py >/dev/null || {
    echo "build.sh needs componentize-py: \`pip install componentize-py==0.25.1\`" >&2
    exit 1
}

componentize-py -d wit -w transform-plugin componentize --stub-wasi plugin -o my-plugin.wasm
