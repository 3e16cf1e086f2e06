#![no_main]

#[path = "../src/recovery.rs"]
mod recovery;

libfuzzer_sys::fuzz_target!(|data: &[u8]| recovery::run(data));
