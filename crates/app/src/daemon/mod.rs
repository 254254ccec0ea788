//! The daemon: from settings to a running loop and back to an exit status.
//! Wires sources, planner, backend and servers together; decides nothing about forwarding.
//! The order is kube-proxy's: the Node first, then kernel parameters and checks, then servers, then rules. Ending,
//! for whatever reason, leaves the data plane in place.

mod addresses;
mod collectors;
mod ending;
mod flows;
mod node;
mod options;
mod platform;
mod reload;
mod servers;
mod source;
mod start;
mod takeover;
mod tuning;

pub(crate) use node::name as node_name;
pub(crate) use options::plan_options;
pub(crate) use platform::supports;
pub(crate) use source::{connection, follow};

use anyhow::{Context, bail};
use ferry_host::process;

use crate::cli::Action;
use crate::config::Settings;
use crate::sync::Stop;
use ending::Ending;

/// Why the daemon does not come as far as its loop.
#[derive(Debug)]
enum Halt {
    /// It was told to stop.
    Stopped(Stop),
    /// It cannot go on.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Does what the settings and the action ask; returns only when done or when it cannot go on.
pub fn run(settings: Settings, action: Action) -> anyhow::Result<()> {
    let what_stays = if settings.mode.relays {
        "rules and addresses stay in place, but nothing is relayed"
    } else {
        "rules stay in place"
    };
    match action {
        Action::Cleanup => cleanup(&settings),
        Action::InitOnly => start::prepare_only(settings),
        Action::Run => match start::serve(settings)? {
            Ending::Again(stand_in) => {
                tracing::info!("Starting again with the changed configuration");
                Err(process::replace(stand_in)).context("starting again")
            }
            Ending::Over(Stop::Failed(reason)) => bail!(reason),
            Ending::Over(stop) => {
                tracing::info!(reason = %stop, "Ending; {what_stays}");
                Ok(())
            }
        },
    }
}

/// Removes the rules of every mode. One that fails does not keep the others from being removed.
fn cleanup(settings: &Settings) -> anyhow::Result<()> {
    if !process::may_administer_network() {
        bail!("removing rules takes the capability CAP_NET_ADMIN; try as root");
    }
    let failures = takeover::clean_up_everything(settings);
    for failure in &failures {
        tracing::error!(err = failure, "Encountered error while tearing down rules");
    }
    if !failures.is_empty() {
        bail!("encountered an error while tearing down rules");
    }
    Ok(())
}
