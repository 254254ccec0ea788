//! Objects to facts: the tables of kube-proxy's own conversion tests, and everything that can be wrong with an object.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod back;
mod nodes;
mod protobuf;
mod services;
mod slices;

use ferry_sources::convert::Converted;

fn good<T>(converted: Converted<Option<T>>) -> T {
    assert_eq!(converted.skipped, []);
    converted.fact.expect("a fact")
}

fn reasons<T>(converted: &Converted<T>) -> Vec<String> {
    converted.skipped.iter().map(ToString::to_string).collect()
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
