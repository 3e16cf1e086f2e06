#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| basalt_log::tests::simulation::run_bytes(data));
