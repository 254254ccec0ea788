//! The daemon: the loop and its servers.

use crate::cli::Action;
use crate::config::Settings;

/// Does what the settings and the action ask; returns only when done or when it cannot go on.
pub fn run(settings: Settings, action: Action) -> anyhow::Result<()> {
    anyhow::bail!("{action:?} in mode {} is not built in", settings.mode)
}
