//! The configuration file: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferry_app::config::fuzz_config(data));
