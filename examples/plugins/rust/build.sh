#!/bin/sh
# Builds my-plugin.wasm and packs it. Where rustup cannot add the target, Debian's toolchain builds the standard library.
set -eu
cd "$(dirname "$0")"
waystation=${WAYSTATION:-waystation}
target=wasm32-unknown-unknown

has_target() {
    libraries=$(rustc --print target-libdir --target $target 2>/dev/null) && [ -d "$libraries" ]
}

if has_target || { rustup target add $target && has_target; } 2>/dev/null; then
    cargo build --release --target $target
elif [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -x /usr/bin/wasm-ld-19 ]; then
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS="-C linker=wasm-ld-19 -C linker-flavor=wasm-ld" \
        /usr/bin/cargo build --release --target $target -Zbuild-std=std,panic_abort
else
    echo "build.sh needs Rust with the target $target: \`rustup target add $target\`," >&2
    echo "or on Debian \`apt-get install rustc-web cargo-web rust-web-src lld-19\`" >&2
    exit 1
fi
"$waystation" plugin pack "${CARGO_TARGET_DIR:-target}/$target/release/my_plugin.wasm" --force -o my-plugin.wasm
