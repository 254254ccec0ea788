//! What users install, held to the tools they install it with.
//!
//! Lives here: rendering `deploy/kubernetes` with kubectl and `deploy/chart` with helm, and reading the objects back
//! as strictly as an API server does. May touch: a temporary directory. Always holds: an object with a field that
//! Kubernetes does not know, or of a kind that nobody expected, is an error.

mod render;
mod strict;

pub use render::{Mode, ferry, helm, kustomize, repository};
pub use strict::{Objects, objects};
