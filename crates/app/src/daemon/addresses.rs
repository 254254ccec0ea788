//! The host's own addresses, now and whenever they change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ferry_host::route::{Monitor, Route};
use ferry_model::Host;

use crate::sync::Signal;

/// The interface that holds service addresses in ipvs mode: those are not the host's own.
const SERVICES: &str = "kube-ipvs0";
/// How long a look at the notifications lasts.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Changes come in bursts, as when an interface goes up.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Every address of every interface.
fn list() -> anyhow::Result<Host> {
    let addresses = Route::open()?.addresses()?;
    let own = addresses
        .into_iter()
        .filter(|address| address.interface != SERVICES);
    Ok(Host {
        addresses: own.map(|address| address.address).collect::<BTreeSet<_>>(),
    })
}

/// Tells the loop the addresses now and from a thread of its own whenever they change.
pub(super) fn watch(signal: Arc<Signal>) -> anyhow::Result<()> {
    // Opened before the list, so that no change falls in between.
    let mut monitor = Monitor::open().context("watching the host's addresses")?;
    let mut known = list().context("listing the host's addresses")?;
    signal.host(known.clone());
    let follow = move || {
        loop {
            match monitor.wait(POLL_INTERVAL) {
                Ok(changes) if changes.is_empty() => continue,
                Ok(_) => {
                    std::thread::sleep(SETTLE_TIME);
                    let _ = monitor.wait(Duration::ZERO);
                }
                Err(error) => {
                    tracing::error!(err = %error, "Can't watch the host's addresses; looking every minute");
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            match list() {
                Ok(host) if host != known => {
                    tracing::info!(count = host.addresses.len(), "The host's addresses changed");
                    known = host.clone();
                    signal.host(host);
                }
                Ok(_) => {}
                Err(error) => tracing::error!(err = %error, "Can't list the host's addresses"),
            }
        }
    };
    std::thread::Builder::new()
        .name("addresses".into())
        .spawn(follow)?;
    Ok(())
}
