//! Ferry: backends.
