//! Documents as trees: YAML or JSON text in (with line numbers), canonical YAML and JSON text out.
//! Pure. What always holds: reading is bounded in depth and size, whatever the input.

mod read;
mod write;

pub use read::{Document, Entry, Error, Node, Value, read_first};
pub use write::{Tree, json, yaml};
