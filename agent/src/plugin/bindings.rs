//! The only `bindgen!` call: the types and calls of `wit/plugin.wit`, as the host sees them.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]

wasmtime::component::bindgen!({
    path: "../wit",
    // With the optional interfaces of transforms: what a component does not export is looked up only where it is needed.
    world: "windowed-plugin",
    // Records are lowered from where they lie; a type that goes both ways gets two names.
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: { default: trappable },
});
