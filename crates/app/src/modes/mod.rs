//! What each mode is: one [`Descriptor`] per backend, and the list of them.
//!
//! A descriptor says everything that the rest of the program has to know of a mode, so nothing outside this room asks
//! which mode it is. It turns [`Settings`] into the options of its backend and reads the environment where kube-proxy
//! does; it touches the kernel only through the backend. Always holds: a mode that is in [`Mode::ALL`] can be
//! configured, opened, cleaned up after and printed; nothing else has to be told of it.

mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::{Alarm, Backend, Error};
use ferry_model::{Family, Plan, Policy};

use crate::config::{Section, Settings};
use crate::events::Event;

/// How long a mode that notices changes by itself goes without a full look.
const HOURLY: Duration = Duration::from_secs(3600);
/// Where records live when the status socket gives no better place.
const RUN_DIRECTORY: &str = "/run/ferry";

/// How traffic gets to endpoints: one of [`Mode::ALL`].
#[derive(Clone, Copy)]
pub struct Mode(&'static Descriptor);

/// What a mode is.
#[derive(Debug)]
pub struct Descriptor {
    /// In flags, in the configuration file and at `/proxyMode`.
    pub name: &'static str,
    /// Which sections of the configuration are its own.
    pub section: Section,
    /// Where it treats packets differently from the others.
    pub policy: fn(&Settings) -> Policy,
    /// Opens it: checks what it needs and sets its kernel parameters, but writes no rule yet.
    pub open: Open,
    /// Removes what it, or kube-proxy in this mode, may have left, except chains that belong to a mode in force.
    pub clean_up: fn(&Settings, OwnsChain) -> Result<(), Error>,
    /// What it would write for a family, as the kernel's tools read it. Asks nothing of this host.
    pub listing: fn(&Settings, &Plan, Family) -> String,
    /// Which iptables chains are its own while it is in force.
    pub owns_chain: OwnsChain,
    /// Whether what it needs beside the kernel is there for a family.
    pub supports: fn(Family) -> Result<(), String>,
    /// The part of the kernel that it speaks to itself, where it is not left to programs.
    pub kernel: Option<KernelPart>,
    /// Whether it has chains in iptables.
    pub writes_iptables: bool,
    /// Whether traffic goes through the process, and would end with it.
    pub relays: bool,
    /// What it leaves to do in the connection tracking table.
    pub conntrack: Conntrack,
    /// How often everything is looked at although nothing seems to have changed.
    pub full_sync_period: fn(&Settings) -> Duration,
    pub metrics: Metrics,
    /// What the cluster is told when it starts.
    pub announcement: Option<fn(&Arc<str>) -> Event>,
    /// How `ferry demo` shows it, where it can.
    pub demo: Option<Demo>,
}

/// Opens a backend, which calls the alarm when it wants the loop to look.
pub type Open = fn(&Settings, Alarm) -> Result<Box<dyn Backend>, Error>;

/// Whether a chain of a table belongs to a mode.
pub type OwnsChain = fn(table: &str, chain: &str) -> bool;

/// What a mode leaves to do in the connection tracking table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conntrack {
    /// Its traffic is tracked, and stale flows have to be removed.
    Swept,
    /// The same, but flows to endpoints that are gone are removed by the kernel.
    SweptButEndpoints,
    /// Its traffic is not tracked; nothing is set or removed.
    Untouched,
}

/// What kube-proxy counts in one mode and not in another.
#[derive(Debug)]
pub struct Metrics {
    /// Name and help of the count of failed syncs.
    pub sync_failures: (&'static str, &'static str),
    /// Metrics of the catalogue that it shows and that a mode that does not list them does not show.
    pub shown: &'static [&'static str],
    /// Packets counted by nfacct objects: the object, and the metric's name and help.
    pub packets: &'static [(&'static str, &'static str, &'static str)],
}

/// A part of the kernel that a mode speaks to.
#[derive(Debug)]
pub struct KernelPart {
    /// The first version that has all of it.
    pub oldest: (u32, u32),
    /// Whether it is there and lets us in. Asking may load a module, and changes nothing else.
    pub check: fn() -> Result<(), String>,
    /// What to do where it is not.
    pub remedy: &'static str,
}

/// How `ferry demo` shows a mode.
#[derive(Debug)]
pub struct Demo {
    pub sabotage: Option<Sabotage>,
}

/// A way to break what the proxy wrote.
#[derive(Debug)]
pub struct Sabotage {
    pub title: &'static str,
    /// Does it, in the calling thread's network namespace.
    pub run: fn() -> anyhow::Result<()>,
}

impl Mode {
    /// All of them, in the order in which what they have left is removed.
    pub const ALL: &'static [Self] = &[
        Self(&userspace::DESCRIPTOR),
        Self(&ipvs::DESCRIPTOR),
        Self(&iptables::DESCRIPTOR),
        Self(&nftables::DESCRIPTOR),
    ];

    /// The mode of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|mode| mode.name == name)
    }

    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Whether a metric of the catalogue belongs to it: one that it lists, or that no mode lists.
    pub fn shows(self, metric: &str) -> bool {
        let lists = |mode: &Self| mode.metrics.shown.contains(&metric);
        lists(&self) || !Self::ALL.iter().any(lists)
    }

    /// The modes whose rules would act beside this one's.
    pub fn others(self) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |mode| *mode != self)
    }
}

impl std::ops::Deref for Mode {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        self.0
    }
}

impl PartialEq for Mode {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Mode {}

impl std::fmt::Debug for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// For modes that have no iptables chains.
fn owns_no_chain(_table: &str, _chain: &str) -> bool {
    false
}

/// For modes that need nothing but the kernel.
fn supports_every_family(_family: Family) -> Result<(), String> {
    Ok(())
}

/// Whether the iptables programs of a family are there and work.
fn supports_iptables(family: Family) -> Result<(), String> {
    use ferry_host::iptables::{Ip, Iptables};
    let ip = match family {
        Family::V4 => Ip::V4,
        Family::V6 => Ip::V6,
    };
    let tool = Iptables::detect(ip, Arc::default()).map_err(|error| error.to_string())?;
    tool.can_do_nat().map_err(|said| {
        format!("{ip} can't list the chain POSTROUTING of table nat ({said}); is its kernel module loaded?")
    })
}

/// The directory for what must outlive the process but not a boot.
fn run_directory(settings: &Settings) -> PathBuf {
    let beside = settings.status_socket.as_deref().and_then(Path::parent);
    beside.map_or_else(|| PathBuf::from(RUN_DIRECTORY), Path::to_owned)
}

/// For a backend that is opened only to clean up.
fn silent() -> Alarm {
    Arc::new(|| {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_found_by_its_name_and_no_name_is_given_twice() {
        for mode in Mode::ALL {
            assert_eq!(Mode::named(mode.name), Some(*mode));
            assert_eq!(mode.others().count(), Mode::ALL.len() - 1, "{mode}");
        }
        assert_eq!(Mode::named("kernelspace"), None);
        assert_eq!(Mode::named(""), None);
    }
}
