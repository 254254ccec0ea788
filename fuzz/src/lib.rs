//! Fuzz targets live in `fuzz_targets/`, one file and one `[[bin]]` of Cargo.toml each; their seeds in
//! `corpus/<target>/`. A target takes bytes, calls one door of the product, and may only end by returning.
