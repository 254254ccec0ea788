//! Where the sources leave what changed and the sync loop picks it up.
//!
//! A [`Mailbox`] holds the latest state of each object that changed since it was last emptied, so a burst of
//! events coalesces by itself and a slow loop costs memory for objects, not for events. It touches nothing but
//! memory. Nothing comes out before every expected kind has had its first complete list.

mod change;
mod mailbox;
mod state;

pub use change::{Change, ObjectId, Trigger};
pub use mailbox::Mailbox;
pub use state::{ChangedObject, Counts, Kind, Mail, NodeState, Problem};
