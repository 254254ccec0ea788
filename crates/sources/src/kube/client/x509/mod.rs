//! Whether a server's certificate is to be trusted, by the rules of Go's crypto/x509.
//!
//! Lives here: reading certificates, building chains to a pool of trusted ones, names, name constraints, key usages
//! and signatures. Touches nothing: bytes and the time come in, a verdict goes out. Always holds: what cannot be
//! read or is not understood is not trusted.
//!
//! The usual library follows RFC 5280 more closely than clusters do: it refuses a certificate authority's own
//! certificate as a server's, a server's certificate as its own authority, critical certificate policies and short
//! RSA keys, all of which Go's programs accept. Narrower than Go in one place: chains that constrain policies
//! (requireExplicitPolicy and its kin, marked critical) are refused, as no policy tree is computed.

mod certificate;
mod chain;
mod constraints;
mod der;
mod name;
mod pss;
mod signature;

pub(super) use certificate::Certificate;
pub(super) use chain::{Distrust, verify};
pub(super) use signature::{HANDSHAKE_SCHEMES, Version, verify_handshake};
