//! The only `bindgen!` call: the types and calls of `wit/plugin.wit`, as the host sees them.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]

wasmtime::component::bindgen!({
    path: "../wit",
    // All worlds in one, so that they share their types. What a component exports is looked up where it is needed, and what it
    // may import is up to the linker that it is given.
    inline: "
        package waystation:host;
        world everything {
            include waystation:plugin/windowed-plugin@0.1.0;
            include waystation:plugin/sink-plugin@0.1.0;
        }
    ",
    world: "waystation:host/everything",
    // Records are lowered from where they lie; a type that goes both ways gets two names.
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: { default: trappable },
});
