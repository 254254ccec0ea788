//! Any bytes as the answer to a list or a watch, in pieces of any size.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferry_sources::kube::fuzz_frames(data));
