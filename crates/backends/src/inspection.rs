//! What was found when the kernel was asked what it holds for a service port.

/// Everything that a service port needs in the kernel, and whether it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    pub checks: Vec<Check>,
    /// What cannot be read back in this mode, in words.
    pub limits: Vec<String>,
}

/// One thing that should be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Where it is and what it is, as the kernel's tools name it.
    pub what: String,
    pub presence: Presence,
    /// What it counted, where it counts.
    pub packets: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    Present,
    Missing,
    /// It is there with another content.
    Different,
}

impl Inspection {
    pub(crate) fn add(&mut self, what: impl Into<String>, presence: Presence) {
        self.checks.push(Check {
            what: what.into(),
            presence,
            packets: None,
        });
    }

    pub(crate) fn add_counted(&mut self, what: impl Into<String>, presence: Presence, packets: Option<u64>) {
        self.checks.push(Check {
            what: what.into(),
            presence,
            packets,
        });
    }
}

impl Presence {
    /// By what should be there and what is.
    pub(crate) fn compare<T: PartialEq + ?Sized>(wanted: &T, found: Option<&T>) -> Self {
        match found {
            None => Presence::Missing,
            Some(found) if found == wanted => Presence::Present,
            Some(_) => Presence::Different,
        }
    }
}
