//! The `srd` command.
fn main() {}
