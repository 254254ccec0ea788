//! Feature gates: every name of Kubernetes 1.36 is known, a few have a meaning here.
//! Pure. What always holds: a locked gate has its locked value.

use std::collections::BTreeMap;

/// Which features are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    set: BTreeMap<String, bool>,
}

impl Gates {
    /// Whether a feature is on; unknown names are off.
    pub fn enabled(&self, name: &str) -> bool {
        self.set.get(name).copied().unwrap_or(false)
    }
}
