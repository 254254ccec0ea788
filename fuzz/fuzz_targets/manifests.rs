//! Any bytes as a file of manifests: reading ends, within bounds, with objects or with a reason.

#![no_main]

use ferry_sources::convert::Interner;
use ferry_sources::manifests::{Format, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for format in [Format::Yaml, Format::Json] {
        match read(data, format, &Interner::default()) {
            Ok(changes) => assert!(changes.len() <= data.len()),
            Err(broken) => assert!(!broken.reason.is_empty()),
        }
    }
});
