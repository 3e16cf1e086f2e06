#![no_main]

#[path = "../src/session.rs"]
mod session;

libfuzzer_sys::fuzz_target!(|data: &[u8]| session::run(data));
