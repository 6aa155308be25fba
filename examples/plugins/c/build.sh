#!/bin/sh
# Builds my-plugin.wasm with zig's C compiler, which brings a C library for WebAssembly, and packs it.
set -eu
cd "$(dirname "$0")"
waystation=${WAYSTATION:-waystation}

# PyPI's package `ziglang` calls it python-zig.
zig=$(command -v zig || command -v python-zig) || {
    echo "build.sh needs zig: \`pip install ziglang\`, or https://ziglang.org/download" >&2
    exit 1
}

mkdir -p build
# A stack of its own size: zig would give it 16 MiB.
"$zig" cc --target=wasm32-wasi -mexec-model=reactor -O2 -s -Wl,-z,stack-size=131072 -Wall -Wextra \
    -o build/core.wasm plugin.c transform_plugin.c transform_plugin_component_type.o
"$waystation" plugin pack build/core.wasm --force -o my-plugin.wasm
