//! What a predecessor of userspace mode sends: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferry_backends::userspace::fuzz_handover(data));
