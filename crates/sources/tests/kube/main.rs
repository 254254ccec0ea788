//! The kube source against an API server: lists, watches, and everything that can go wrong with them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failures;
mod lists;
mod protobuf;
mod rig;
mod watches;
