//! Why a backend could not do its work: what was attempted, what it met, and whether it helps to try again.

use std::error::Error as StdError;

use ferry_host::{ipset, iptables, ipvs, modules, nftables, route, sysctl};

/// Something that a backend attempted and that did not work.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {source}")]
pub struct Error {
    /// In words: `write 3 additions and 0 removals to nf_tables`.
    pub attempt: String,
    pub step: Step,
    pub retry: Retry,
    pub source: Box<dyn StdError + Send + Sync>,
}

/// Which part of the work it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Getting hold of the kernel or a program, and setting what rules depend on.
    Open,
    /// Finding out what is there.
    Read,
    /// Changing it.
    Write,
}

/// Whether the same may work later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Helps,
    /// The kernel or a program lacks something: not before somebody changes the node.
    Futile,
}

impl Error {
    pub fn new(
        step: Step,
        attempt: impl Into<String>,
        retry: Retry,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self {
            attempt: attempt.into(),
            step,
            retry,
            source: source.into(),
        }
    }

    pub(crate) fn opening<C: Cause>(attempt: impl Into<String>) -> impl FnOnce(C) -> Self {
        move |cause| Self::new(Step::Open, attempt, cause.retry(), cause)
    }

    pub(crate) fn reading<C: Cause>(attempt: impl Into<String>) -> impl FnOnce(C) -> Self {
        move |cause| Self::new(Step::Read, attempt, cause.retry(), cause)
    }

    pub(crate) fn writing<C: Cause>(attempt: impl Into<String>) -> impl FnOnce(C) -> Self {
        move |cause| Self::new(Step::Write, attempt, cause.retry(), cause)
    }

    /// The same, known not to work before somebody changes the node.
    pub(crate) fn futile(self) -> Self {
        Self {
            retry: Retry::Futile,
            ..self
        }
    }
}

/// What a backend can meet in the kernel and its programs.
pub(crate) trait Cause: StdError + Send + Sync + 'static {
    fn retry(&self) -> Retry {
        Retry::Helps
    }
}

fn futile_if(lacking: bool) -> Retry {
    if lacking { Retry::Futile } else { Retry::Helps }
}

impl Cause for nftables::Error {
    fn retry(&self) -> Retry {
        futile_if(self.is_unsupported())
    }
}

impl Cause for ipset::Error {
    fn retry(&self) -> Retry {
        futile_if(self.is_unsupported())
    }
}

impl Cause for ipvs::Error {
    fn retry(&self) -> Retry {
        futile_if(matches!(self, Self::Unavailable(_)))
    }
}

impl Cause for iptables::Error {
    fn retry(&self) -> Retry {
        futile_if(matches!(self, Self::Missing { .. } | Self::Version { .. }))
    }
}

impl Cause for modules::Missing {
    fn retry(&self) -> Retry {
        Retry::Futile
    }
}

impl Cause for route::Error {}
impl Cause for sysctl::Error {}
impl Cause for std::io::Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_attempted_and_keeps_what_it_met() {
        let missing = iptables::Error::Missing {
            program: "iptables".into(),
        };
        let error = Error::opening("find the iptables programs")(missing);
        assert_eq!(
            error.to_string(),
            "find the iptables programs: iptables is not installed"
        );
        assert_eq!((error.step, error.retry), (Step::Open, Retry::Futile));
        let source = StdError::source(&error).unwrap();
        assert!(matches!(
            source.downcast_ref::<iptables::Error>(),
            Some(iptables::Error::Missing { .. })
        ));
    }

    #[test]
    fn a_held_lock_is_worth_another_try() {
        let locked = iptables::Error::Locked {
            program: "iptables-restore".into(),
            lock: None,
        };
        assert_eq!(Error::writing("write IPv4 rules")(locked).retry, Retry::Helps);
    }
}
