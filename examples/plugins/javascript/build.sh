#!/bin/sh
# Builds my-plugin.wasm: the script with QuickJS in one component.
set -eu
cd "$(dirname "$0")"

command -v npm >/dev/null || {
    echo "build.sh needs Node.js 18 or later with npm: https://nodejs.org" >&2
    exit 1
}

[ -d node_modules ] || npm install --no-audit --no-fund
npm run --silent build
