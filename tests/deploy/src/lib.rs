//! What users install, held to the tools they install it with.
//!
//! Lives here: rendering `deploy/kubernetes` with kubectl and `deploy/chart` with helm, reading the objects back as
//! strictly as an API server does, and a service of the lab's network to be served. May touch: temporary directories and
//! the lab's namespaces. Always holds: an object with a field that
//! Kubernetes does not know, or of a kind that nobody expected, is an error.

mod container;
mod render;
mod serving;
mod strict;

pub use container::{Pod, Started, User, bundle};
pub use render::{Mode, ferry, helm, kustomize, repository};
pub use serving::{CONFINED, MANIFESTS, Running, confined_to, is_served};
pub use strict::{Objects, objects};
