//! Ferry: sources.
