//! Basalt.
fn main(){}
