//! Which backend a mode has, and the clean-up of all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::iptables::{self, Beside, Iptables};
use ferry_backends::ipvs::{self, IpvsBackend};
use ferry_backends::nftables::{self, Nftables};
use ferry_backends::userspace::{self, Ingress, Userspace};
use ferry_backends::{Alarm, Applied, Backend, Error, ErrorKind, Traffic};
use ferry_host::ipvs::Timeouts;
use ferry_model::{Family, Plan};

use crate::config::{Mode, Settings};

/// How often legacy iptables, which tells nothing by itself, is looked at.
const POLL: Duration = Duration::from_secs(1);
/// Where records live when the status socket gives no better place.
const RUN: &str = "/run/ferry";

/// The backend of the mode in force.
#[derive(Debug)]
pub(super) enum AnyBackend {
    Iptables(Box<Iptables>),
    Ipvs(Box<IpvsBackend>),
    Nftables(Box<Nftables>),
    Userspace(Box<Userspace>),
}

/// kube-proxy's way past its check of the kernel's version.
const SKIP_KERNEL_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

impl AnyBackend {
    /// Opens the backend of the configured mode: checks what it needs and sets its kernel parameters, but writes no
    /// rule yet. `retired` is called when another process has taken over.
    pub(super) fn open(settings: &Settings, alarm: &Alarm, retired: &Alarm) -> Result<Self, Error> {
        Ok(match settings.mode {
            Mode::Iptables => Self::Iptables(Box::new(Iptables::new(
                iptables_options(settings),
                Arc::clone(alarm),
            ))),
            Mode::Ipvs => {
                let mut backend = IpvsBackend::open(ipvs_settings(settings))?;
                backend.watch(alarm)?;
                Self::Ipvs(Box::new(backend))
            }
            Mode::Nftables => {
                let options = nftables::Options {
                    masquerade_bit: settings.masquerade_bit,
                    counters: settings.traffic_counters,
                    check_kernel: std::env::var_os(SKIP_KERNEL_CHECK).is_none_or(|value| value.is_empty()),
                };
                Self::Nftables(Box::new(Nftables::new(options, Arc::clone(alarm))?))
            }
            Mode::Userspace => {
                let config = userspace::Config {
                    handover: handover_socket(settings),
                    retired: Some(Arc::clone(retired)),
                    ..userspace_config(settings)
                };
                Self::Userspace(Box::new(Userspace::start(config)?))
            }
        })
    }

    /// What mixes with our rules without our seeing it.
    pub(super) fn mixed(&mut self) -> Option<String> {
        let Self::Iptables(backend) = self else {
            return None;
        };
        let others = backend.mixed();
        let others: Vec<String> = others
            .iter()
            .map(|other| {
                format!(
                    "{} {} also holds {}",
                    other.ip,
                    other.flavour,
                    other.chains.join(", ")
                )
            })
            .collect();
        (!others.is_empty()).then(|| others.join("; "))
    }

    /// Whether traffic goes through this process, and would end with it.
    pub(super) fn relays(&self) -> bool {
        matches!(self, Self::Userspace(_))
    }

    /// Whether a successor has taken over.
    pub(super) fn is_retired(&self) -> bool {
        match self {
            Self::Userspace(backend) => backend.is_retired(),
            Self::Iptables(_) | Self::Ipvs(_) | Self::Nftables(_) => false,
        }
    }

    /// Connections that go through this process and would end with it. The other modes leave their rules behind.
    pub(super) fn open_connections(&self) -> usize {
        match self {
            Self::Userspace(backend) => backend.open_connections(),
            Self::Iptables(_) | Self::Ipvs(_) | Self::Nftables(_) => 0,
        }
    }

    fn inner(&mut self) -> &mut dyn Backend {
        match self {
            Self::Iptables(backend) => &mut **backend,
            Self::Ipvs(backend) => &mut **backend,
            Self::Nftables(backend) => &mut **backend,
            Self::Userspace(backend) => &mut **backend,
        }
    }

    fn inner_ref(&self) -> &dyn Backend {
        match self {
            Self::Iptables(backend) => &**backend,
            Self::Ipvs(backend) => &**backend,
            Self::Nftables(backend) => &**backend,
            Self::Userspace(backend) => &**backend,
        }
    }
}

impl Backend for AnyBackend {
    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        self.inner().apply(plan, family)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.inner().cleanup()
    }

    fn next_due(&self) -> Option<Duration> {
        self.inner_ref().next_due()
    }

    fn traffic(&mut self) -> Result<Vec<Traffic>, Error> {
        self.inner().traffic()
    }

    fn notes(&self) -> Vec<String> {
        self.inner_ref().notes()
    }
}

fn iptables_options(settings: &Settings) -> iptables::Options {
    iptables::Options {
        masquerade_bit: settings.masquerade_bit,
        poll: POLL,
        ..iptables::Options::default()
    }
}

fn ipvs_settings(settings: &Settings) -> ipvs::Settings {
    ipvs::Settings {
        scheduler: settings.ipvs.scheduler.clone(),
        exclude_cidrs: settings.ipvs.exclude_cidrs.clone(),
        strict_arp: settings.ipvs.strict_arp,
        timeouts: Timeouts {
            tcp: settings.ipvs.tcp_timeout,
            tcp_fin: settings.ipvs.tcp_fin_timeout,
            udp: settings.ipvs.udp_timeout,
        },
        masquerade_mark: 1 << (settings.masquerade_bit & 31),
        repair_every: Some(settings.sync_period),
        record: run_directory(settings),
        ..ipvs::Settings::default()
    }
}

fn userspace_config(settings: &Settings) -> userspace::Config {
    userspace::Config {
        ingress: match (
            settings.userspace.bind,
            ferry_host::process::may_administer_network(),
        ) {
            (false, _) => Ingress::Portals,
            (true, true) => Ingress::Loopback,
            (true, false) => Ingress::Mapped,
        },
        bind_address: Some(settings.bind_address),
        ports: settings.userspace.ports.map(|range| range.first..=range.last),
        relay: userspace::Settings {
            udp_idle: settings.userspace.udp_timeout,
            ..userspace::Settings::default()
        },
        check: settings.sync_period.max(settings.min_sync_period),
        ..userspace::Config::default()
    }
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

/// The directory for what must outlive the process but not a boot.
fn run_directory(settings: &Settings) -> PathBuf {
    let beside = settings.status_socket.as_deref().and_then(Path::parent);
    beside.map_or_else(|| PathBuf::from(RUN), Path::to_owned)
}

/// Removes what every mode may have left; tells what failed.
pub(super) fn cleanup_all(settings: &Settings) -> Vec<String> {
    let modes = [Mode::Userspace, Mode::Ipvs, Mode::Iptables, Mode::Nftables];
    modes
        .into_iter()
        .filter_map(|mode| cleanup(mode, settings).err())
        .collect()
}

/// Removes what one mode may have left, all of it.
fn cleanup(mode: Mode, settings: &Settings) -> Result<(), String> {
    remove(mode, settings, Beside::Nothing)
}

/// Removes what one mode may have left, except what the mode in force has under the same names.
pub(super) fn cleanup_leftovers(mode: Mode, settings: &Settings) -> Result<(), String> {
    let beside = match settings.mode {
        Mode::Ipvs => Beside::Ipvs,
        Mode::Userspace => Beside::Userspace,
        Mode::Iptables | Mode::Nftables => Beside::Nothing,
    };
    remove(mode, settings, beside)
}

/// A kernel that cannot do the mode has nothing of it.
fn remove(mode: Mode, settings: &Settings, beside: Beside) -> Result<(), String> {
    let nobody: Alarm = Arc::new(|| {});
    let outcome = match mode {
        Mode::Iptables => Iptables::new(iptables_options(settings), nobody).cleanup_beside(beside),
        Mode::Ipvs => ipvs::cleanup(&run_directory(settings)),
        Mode::Nftables => {
            Nftables::new(nftables::Options::default(), nobody).and_then(|mut backend| backend.cleanup())
        }
        Mode::Userspace => {
            Userspace::start(userspace_config(settings)).and_then(|mut backend| backend.cleanup())
        }
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if error.kind == ErrorKind::Unsupported => {
            tracing::debug!(mode = mode.as_str(), err = %error, "Nothing to clean up");
            Ok(())
        }
        Err(error) => Err(format!("{mode}: {error}")),
    }
}
