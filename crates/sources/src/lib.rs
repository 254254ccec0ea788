//! Where facts come from: the Kubernetes API or a directory of manifests.
//!
//! Both go through the same [`convert`], the one place that knows Kubernetes objects and our facts, and leave
//! what changed in a [`Mailbox`] for the sync loop. A bad object never spoils the others.

mod assemble;
mod bounded;
pub mod convert;
pub mod kube;
pub mod manifests;
pub mod objects;

pub use assemble::{
    Change, ChangedObject, Counts, Kind, Mail, Mailbox, NodeState, ObjectId, Problem, Trigger,
};
