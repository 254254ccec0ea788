//! Our own Node: its name, and the wait for it at the start.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ferry_model::{Family, Node};
use ferry_sources::{Mailbox, NodeState};

use super::Halt;
use crate::config::{DetectLocal, Settings, Source};
use crate::sync::Signal;

/// How long the Node may take to exist with addresses; after that we go on without.
const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to get its pod networks, where they are needed; after that we give up.
const POD_CIDRS_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a wait looks whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The name of our Node: as configured, else the kernel's host name.
pub(crate) fn name(settings: &Settings) -> anyhow::Result<Arc<str>> {
    let name = match &settings.hostname_override {
        Some(name) => name.clone(),
        None => host_name().trim().to_lowercase(),
    };
    if name.is_empty() {
        bail!("empty hostname is invalid");
    }
    Ok(name.into())
}

/// The kernel's host name.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Waits until the Node is known well enough to begin.
pub(super) fn wait(
    settings: &Settings,
    name: &str,
    mailbox: &Mailbox,
    signal: &Signal,
) -> Result<Option<Arc<Node>>, Halt> {
    let wait = |limit: Option<Duration>, enough: &dyn Fn(&NodeState) -> bool| {
        let until = limit.map(|limit| Instant::now() + limit);
        wait_for(mailbox, signal, until, enough)
    };
    wait(None, &|state| state.listed)?;
    // Files do not come into being by themselves while we wait, and a Node that comes later is taken as it comes.
    if matches!(settings.source, Source::Manifests(_)) {
        return Ok(mailbox.node().node);
    }
    let has_addresses =
        |state: &NodeState| state.node.as_ref().is_some_and(|node| !node.addresses.is_empty());
    let state = wait(Some(ADDRESSES_TIMEOUT), &has_addresses)?;
    match &state.node {
        None => tracing::error!(node = name, "Timed out waiting for node to exist"),
        Some(node) if node.addresses.is_empty() => {
            tracing::error!(node = name, "Timed out waiting for node to be assigned IPs");
        }
        Some(node) => {
            tracing::info!(node = name, nodeIPs = ?texts(&node.addresses), "Successfully retrieved NodeIPs")
        }
    }
    if settings.detect_local != DetectLocal::NodeCidr {
        return Ok(state.node);
    }
    let has_cidrs = |state: &NodeState| state.node.as_ref().is_some_and(|node| !node.pod_cidrs.is_empty());
    let state = wait(Some(POD_CIDRS_TIMEOUT), &has_cidrs)?;
    let node = state
        .node
        .with_context(|| format!("timeout waiting for node {name:?} to exist"))?;
    if node.pod_cidrs.is_empty() {
        return Err(anyhow!("timeout waiting for PodCIDR allocation on node {name:?}").into());
    }
    tracing::info!(node = name, podCIDRs = ?texts(&node.pod_cidrs), "Successfully retrieved PodCIDRs");
    Ok(Some(node))
}

/// For the log, which prints a list of texts as a list.
fn texts(values: &[impl ToString]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// What is known once it is enough or the time is over, unless told to stop.
fn wait_for(
    mailbox: &Mailbox,
    signal: &Signal,
    until: Option<Instant>,
    enough: &dyn Fn(&NodeState) -> bool,
) -> Result<NodeState, Halt> {
    loop {
        let look = Instant::now() + POLL_INTERVAL;
        let state = mailbox.wait_for_node(Some(until.map_or(look, |until| until.min(look))), enough);
        if let Some(stop) = signal.stopping() {
            return Err(Halt::Stopped(stop));
        }
        if enough(&state) || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(state);
        }
    }
}

/// The node's addresses and its first family: those of the Node, unless the bind address says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// The family that must work.
    pub(super) primary: Family,
    /// The address of the primary family, if known.
    pub(super) address: Option<IpAddr>,
}

/// Who we are in the network.
pub(super) fn identity(settings: &Settings, node: Option<&Node>) -> Identity {
    let bound = Some(settings.bind_address).filter(|address| !address.is_unspecified());
    let address = bound.or_else(|| node.and_then(|node| node.addresses.first().copied()));
    if address.is_none_or(|address| address.is_loopback()) {
        tracing::info!(
            "Can't determine this node's IP, assuming loopback; if this is incorrect, please set the --bind-address flag"
        );
    }
    Identity {
        primary: address.map_or(Family::V4, Family::of),
        address,
    }
}
