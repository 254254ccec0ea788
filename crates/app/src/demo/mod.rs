//! `ferry demo`: the real proxy, real requests, and a network that exists only for as long as it takes.
//! May make namespaces, start the proxy in one of them and write manifests into a temporary directory; touches nothing
//! else of the machine. Always holds: when it ends, nothing is left, unless it was asked to keep everything.

mod network;
mod proxy;
mod requests;
mod story;

use anyhow::Context;

use crate::modes::Mode;

/// What becomes of it all when the story is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    CleanUp,
    /// Leave the namespaces and the proxy running.
    Keep,
}

/// Builds the network, tells the story, cleans up.
pub fn run(mode: Mode, afterwards: Afterwards) -> anyhow::Result<()> {
    let mut stage = story::Stage::set(mode).context(
        "the demo makes network namespaces and programs the firewall inside them, which takes root (try sudo)",
    )?;
    stage.play()?;
    match afterwards {
        Afterwards::CleanUp => Ok(()),
        Afterwards::Keep => stage.keep(),
    }
}
