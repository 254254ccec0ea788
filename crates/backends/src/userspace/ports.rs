//! Which local ports proxy doors get: from a range, or whatever the kernel gives.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

/// Hands out ports of a range, each once. A port that could not be bound is left alone until it is released.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    range: Option<RangeInclusive<u16>>,
    used: BTreeSet<u16>,
}

/// Every port of the range is in use.
#[derive(Debug, thiserror::Error)]
#[error("no port is left in the proxy port range {}-{}", .0.start(), .0.end())]
pub(super) struct Exhausted(RangeInclusive<u16>);

impl Ports {
    pub(super) fn new(range: Option<RangeInclusive<u16>>) -> Self {
        Ports {
            range: range.filter(|range| !range.is_empty()),
            used: BTreeSet::new(),
        }
    }

    /// A free port, or zero where the kernel chooses. The name decides where the search starts, so that a service
    /// mostly finds its port again after a restart.
    pub(super) fn allocate(&mut self, name: &impl Hash) -> Result<u16, Exhausted> {
        let Some(range) = &self.range else { return Ok(0) };
        let size = u32::from(*range.end()) - u32::from(*range.start()) + 1;
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let start = (hasher.finish() % u64::from(size)) as u32;
        let at = |step: u32| *range.start() + ((start + step) % size) as u16;
        let port = (0..size).map(at).find(|port| !self.used.contains(port));
        let port = port.ok_or_else(|| Exhausted(range.clone()))?;
        self.used.insert(port);
        Ok(port)
    }

    /// Marks a port that came from elsewhere.
    pub(super) fn take(&mut self, port: u16) {
        if self.range.as_ref().is_some_and(|range| range.contains(&port)) {
            self.used.insert(port);
        }
    }

    pub(super) fn release(&mut self, port: u16) {
        self.used.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_used_up_and_reused() {
        let mut ports = Ports::new(Some(20000..=20000));
        assert_eq!(ports.allocate(&"a").unwrap(), 20000);
        let error = ports.allocate(&"b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no port is left in the proxy port range 20000-20000"
        );
        ports.release(20000);
        assert_eq!(ports.allocate(&"b").unwrap(), 20000);
    }

    #[test]
    fn every_port_of_a_range_is_given_once() {
        let mut ports = Ports::new(Some(65436..=65535));
        ports.take(65500);
        ports.take(1);
        let given: BTreeSet<u16> = (0..99).map(|n| ports.allocate(&n).unwrap()).collect();
        assert_eq!(given.len(), 99);
        assert!(!given.contains(&65500) && given.iter().all(|port| *port >= 65436));
        assert!(ports.allocate(&"more").is_err());
    }

    #[test]
    fn a_name_finds_its_port_again() {
        let (mut one, mut two) = (Ports::new(Some(1000..=2000)), Ports::new(Some(1000..=2000)));
        assert_eq!(one.allocate(&"web").unwrap(), two.allocate(&"web").unwrap());
    }

    #[test]
    fn without_a_range_the_kernel_chooses() {
        assert_eq!(Ports::new(None).allocate(&"a").unwrap(), 0);
    }
}
