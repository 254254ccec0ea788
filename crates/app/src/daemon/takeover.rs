//! What modes have left, removed: that of others once our own rules are in force, so that between the two there is no
//! gap in service, or everything.

use ferry_backends::Retry;

use crate::config::Settings;
use crate::modes::{Mode, OwnsChain};

/// Removes the leftovers of the other modes. A failure is only logged.
pub(super) fn clean_up_other_modes(settings: &Settings) {
    if !ferry_host::process::may_administer_network() {
        return;
    }
    for mode in settings.mode.others() {
        match clean_up(mode, settings, settings.mode.owns_chain) {
            Ok(()) => tracing::debug!(mode = mode.name, "Removed what another mode may have left"),
            Err(error) => tracing::warn!(mode = mode.name, err = error, "Can't remove another mode's rules"),
        }
    }
}

/// The same on a thread of its own: the loop has other things to do.
pub(super) fn clean_up_aside(settings: Settings) {
    let spawned = std::thread::Builder::new()
        .name("takeover".into())
        .spawn(move || clean_up_other_modes(&settings));
    if let Err(error) = spawned {
        tracing::warn!(err = %error, "Can't remove other modes' rules");
    }
}

/// Removes what every mode may have left; tells what failed.
pub(super) fn clean_up_everything(settings: &Settings) -> Vec<String> {
    let removed = |mode: &Mode| clean_up(*mode, settings, |_, _| false).err();
    Mode::ALL.iter().filter_map(removed).collect()
}

/// A kernel that cannot do the mode has nothing of it.
fn clean_up(mode: Mode, settings: &Settings, keep: OwnsChain) -> Result<(), String> {
    match (mode.clean_up)(settings, keep) {
        Ok(()) => Ok(()),
        Err(error) if error.retry == Retry::Futile => {
            tracing::debug!(mode = mode.name, err = %error, "Nothing to clean up");
            Ok(())
        }
        Err(error) => Err(format!("{mode}: {error}")),
    }
}
