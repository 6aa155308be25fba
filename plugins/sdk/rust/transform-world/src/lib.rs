//! The world `transform-plugin`, for `export_transform!` of the SDK.
//!
//! The SDK's own bindings are those of `windowed-plugin`, so that transforms with and without ticks have the same types. A
//! component says which world it is of, and a crate can have the macro that exports an interface only once: hence this crate,
//! of which nothing but that word is used.

wit_bindgen::generate!({
    path: "../../../../wit",
    world: "transform-plugin",
    pub_export_macro: true,
    export_macro_name: "export",
    default_bindings_module: "waystation_plugin::bindings",
});
