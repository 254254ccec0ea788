//! What the kernel answers and announces by netlink: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferry_host::fuzz_netlink(data));
