//! eddy.
fn main() {}
