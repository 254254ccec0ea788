//! What other modes have left, removed once our own rules are in force: between the two there is no gap in service.

use crate::config::{Mode, Settings};

use super::backend;

/// Removes the leftovers of the modes that cannot share the node with ours. A failure is only logged.
pub(super) fn clean_up_other_modes(settings: &Settings) {
    if !ferry_host::process::may_administer_network() {
        return;
    }
    for mode in rivals(settings.mode) {
        match backend::cleanup_leftovers(*mode, settings) {
            Ok(()) => tracing::debug!(mode = mode.as_str(), "Removed what another mode may have left"),
            Err(error) => tracing::warn!(
                mode = mode.as_str(),
                err = error,
                "Can't remove another mode's rules"
            ),
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

/// The modes whose rules would act beside ours.
fn rivals(mode: Mode) -> &'static [Mode] {
    match mode {
        Mode::Nftables => &[Mode::Userspace, Mode::Ipvs, Mode::Iptables],
        Mode::Iptables => &[Mode::Userspace, Mode::Ipvs, Mode::Nftables],
        Mode::Ipvs => &[Mode::Userspace, Mode::Iptables, Mode::Nftables],
        Mode::Userspace => &[Mode::Ipvs, Mode::Iptables, Mode::Nftables],
    }
}
