//! Ferry: host.
