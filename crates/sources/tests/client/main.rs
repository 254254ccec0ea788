//! The client of the API server: kubeconfigs, credentials, certificates and connections, against servers of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod authentication;
mod certificates;
mod connections;
mod kubeconfigs;
mod pki;
mod proxies;
mod rotation;
mod secrets;
mod server;
