//! Documents as trees: YAML or JSON text in (with line numbers), into and out of serde's types, canonical YAML and JSON
//! text out.
//! Pure. What always holds: reading is bounded in depth and size, whatever the input.

mod decode;
mod read;
mod write;

pub use decode::{DecodeError, Scalar, Unknown, decode};
pub use read::{Document, Entry, Error, Node, Value, read_first};
pub use write::{json, yaml};
