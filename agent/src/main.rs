//! The `waystation` binary.

fn main() {}
