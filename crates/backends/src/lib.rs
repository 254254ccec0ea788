//! Plans into kernels: one room per mode, each behind the same door.
//!
//! A backend renders a plan into what its kernel should hold, compares that with what it knows or observes, and
//! writes the difference. It decides nothing about services: that is in the plan.

mod chains;
pub mod iptables;
pub mod ipvs;
pub mod nftables;
mod relay;
pub mod userspace;

mod error;
mod inspection;

use std::sync::Arc;
use std::time::Duration;

use ferry_model::{Family, Plan, PortName, PortPlan};

pub use error::{Error, Retry, Step};
pub use inspection::{Check, Inspection, Presence};
pub use relay::hold as hold_port;

/// How near a mode stays to what kube-proxy writes for the same packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Likeness {
    /// Packets fare as they do with kube-proxy, but nobody waits where its rules make them wait.
    #[default]
    Outcomes,
    /// Its rules to the letter, for those who compare them.
    Rules,
}

/// A mode's way into the kernel. Owned by one plain thread.
pub trait Backend: Send {
    /// Makes the kernel do what the plan says for a family. After a failure the next call finds out for itself what
    /// is there, so there is nothing to repair in between.
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error>;

    /// Where the kernel differs from the plan now, in words. Reads and writes nothing; takes as long as looking at
    /// everything does.
    fn differences(&mut self, plan: &Plan, family: Family) -> Result<Vec<String>, Error>;

    /// Removes everything that this backend, or kube-proxy in this mode, ever wrote.
    fn cleanup(&mut self) -> Result<(), Error>;

    /// When `apply` wants to be called again although nothing changed: connections drain, or a check is due.
    fn next_due(&self) -> Option<Duration> {
        None
    }

    /// What flowed so far, where the mode counts it.
    fn traffic(&mut self) -> Result<Vec<Traffic>, Error> {
        Ok(Vec::new())
    }

    /// What the kernel holds for a service port, read back now: what is needed for it, and no more.
    fn inspect(&mut self, plan: &Plan, port: &PortPlan) -> Result<Inspection, Error>;

    /// Connections that go through this process, by endpoint; none where the kernel carries them.
    fn relayed(&self) -> Option<Vec<RelayedFlows>> {
        None
    }

    /// Lines for people: where traffic gets in if that is not obvious, what is draining, and the like.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sets what the first `apply` would set besides its rules, for a process that may do no more.
    fn prepare(&mut self, _plan: &Plan) -> Result<(), Error> {
        Ok(())
    }

    /// What mixes with our rules without our seeing it, in words.
    fn mixed(&mut self) -> Option<String> {
        None
    }

    /// Whether another process has taken over: nothing is left to do but to let connections end.
    fn is_retired(&self) -> bool {
        false
    }

    /// Connections that go through this process and would end with it; rules outlive their writer.
    fn open_connections(&self) -> usize {
        0
    }
}

/// Wakes the loop: something else changed what we wrote, a backend has work to do, or another process took over.
pub type Alarm = Arc<dyn Fn() + Send + Sync>;

/// What a successful `apply` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Everything was looked at, not only what changed.
    pub full: bool,
    pub added: usize,
    pub removed: usize,
    /// What others had changed or removed and is right again.
    pub repaired: Vec<Repair>,
    /// Rules by table, where the mode has such.
    pub tables: Vec<TableRules>,
    /// What could not be done and is not worth failing for.
    pub warnings: Vec<String>,
    /// Writes that were refused and then worked around or done in another way.
    pub refused: RefusedWrites,
}

/// Writes that the kernel or its tool refused, by what they were to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    /// What had changed; after such a refusal everything is looked at.
    pub partial: usize,
    /// Everything.
    pub full: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub what: String,
    /// The process that did it, where the kernel tells.
    pub by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    pub table: &'static str,
    pub total: usize,
    pub written: usize,
}

/// What flowed through a service port, in all or to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub family: Family,
    pub port: PortName,
    pub endpoint: Option<std::net::SocketAddr>,
    pub connections: u64,
    /// Towards the endpoint and back; `None` where the mode counts connections only.
    pub bytes: Option<(u64, u64)>,
    /// Where connections go through the process.
    pub relayed: Option<Relayed>,
}

/// Connections to one endpoint that go through the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedFlows {
    pub family: Family,
    pub port: PortName,
    pub endpoint: std::net::SocketAddr,
    /// Open now.
    pub open: u64,
}

/// What only a relay knows of the connections of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// Open now.
    pub open: u64,
    /// No endpoint answered.
    pub failed: u64,
    /// Turned away by policy.
    pub refused: u64,
}
