//! Kubernetes objects to facts: the one place that knows both.
//!
//! Pure, and total: whatever an object says, the good part of it becomes a fact and every bad part is reported
//! as [`Skipped`] with its field and the reason. What is left out on purpose (headless Services, ExternalName)
//! is not reported.

mod annotations;
mod back;
mod intern;
mod ip;
mod node;
mod report;
mod service;
mod slice;
mod text;

pub use back::object;
pub use intern::Interner;
pub use ip::{parse_cidr, parse_ip};
pub use node::{node, service_cidr};
pub use service::service;
pub use slice::{endpoints, endpoints_slice_name, slice, trigger_time};

use ferry_model::Skipped;

/// What an object became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted<T> {
    /// The served part; `None` where nothing of the object is.
    pub fact: T,
    pub skipped: Vec<Skipped>,
}
