//! The packet lab.
