//! The userspace mode.

use std::path::PathBuf;

use ferry_backends::Backend;
use ferry_backends::userspace::{self, Ingress, Options, Userspace};
use ferry_model::Policy;

use super::{Conntrack, Demo, Descriptor, HOURLY, Metrics, run_directory, silent, supports_every_family};
use crate::config::{Section, Settings};

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "userspace",
    section: Section::Userspace,
    policy: |_| Policy::userspace(),
    open: |settings, alarm| {
        let options = Options {
            handover: handover_socket(settings),
            ..options(settings)
        };
        Ok(Box::new(Userspace::open(options, alarm)?))
    },
    clean_up: |settings, _| Userspace::open(options(settings), silent())?.cleanup(),
    listing: |settings, plan, family| userspace::listing(plan, family, &as_on_a_node(settings)),
    owns_chain: userspace::owns_chain,
    supports: supports_every_family,
    kernel: None,
    writes_iptables: true,
    relays: true,
    // It must work where nothing may be set.
    conntrack: Conntrack::Untouched,
    full_sync_period: |_| HOURLY,
    metrics: Metrics {
        sync_failures: (
            "ferry_sync_failures_total",
            "Cumulative proxy userspace sync failures",
        ),
        shown: &[
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        ],
        packets: &[],
    },
    announcement: None,
    demo: Some(Demo { sabotage: None }),
};

fn options(settings: &Settings) -> Options {
    let ingress = if !settings.userspace.bind {
        Ingress::Portals
    } else if ferry_host::process::may_administer_network() {
        Ingress::Loopback
    } else {
        Ingress::Mapped
    };
    Options {
        ingress,
        bind_address: Some(settings.bind_address),
        ports: settings.userspace.ports.map(|range| range.first..=range.last),
        relay: userspace::Settings {
            udp_idle: settings.userspace.udp_timeout,
            ..userspace::Settings::default()
        },
        check: settings.sync_period.max(settings.min_sync_period),
        handover: None,
    }
}

/// As the daemon has it that may administer the network, whoever asks.
fn as_on_a_node(settings: &Settings) -> Options {
    let mut options = options(settings);
    if options.ingress == Ingress::Mapped {
        options.ingress = Ingress::Loopback;
    }
    options
}

/// Where a successor gets our sockets; nowhere if this process may not write there.
fn handover_socket(settings: &Settings) -> Option<PathBuf> {
    let directory = run_directory(settings);
    match std::fs::create_dir_all(&directory) {
        Ok(()) => Some(directory.join("userspace.sock")),
        Err(error) => {
            tracing::warn!(dir = %directory.display(), err = %error, "No socket for a successor; a restart will cut connections");
            None
        }
    }
}
