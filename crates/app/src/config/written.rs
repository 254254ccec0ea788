//! The configuration as it was written: kube-proxy's fields in the form and order of its file, nothing judged yet.
//! Flags and files both end here; validation turns it into [`Settings`](super::Settings), and it is written back as
//! the file of `--write-config-to` and the body of `/configz`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::{GoDuration, Named, Quantity, Word};
use super::yaml::Scalar;
use crate::logging::Format;
use crate::modes::Mode;

/// The port of the health server unless told otherwise.
pub const HEALTHZ_PORT: i32 = 10256;
/// The port of the metrics server unless told otherwise.
pub const METRICS_PORT: i32 = 10249;
/// Where `ferry status` finds the daemon unless told otherwise.
pub const STATUS_SOCKET: &str = "/run/ferry/ferry.sock";
/// The group and version of the file.
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the file.
pub(super) const KIND: &str = "KubeProxyConfiguration";

/// The sections of the file: the name that kube-proxy's messages have for each, and its fields with their defaults. A
/// field without one is empty or zero.
macro_rules! sections {
    ($(
        $(#[$doc:meta])*
        $go_name:literal $name:ident {
            $($(#[$attribute:meta])* $field:ident: $type:ty $(= $default:expr)?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename = $go_name, rename_all = "camelCase")]
        pub struct $name {
            $($(#[$attribute])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: sections!(@default $($default)?),)*
                }
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

sections! {
    /// A whole configuration. [`Config::default`] is what kube-proxy runs with when nothing is given.
    "KubeProxyConfiguration" Config {
        kind: String = KIND.to_owned(),
        api_version: String = API_VERSION.to_owned(),
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        feature_gates: BTreeMap<String, bool>,
        #[serde(rename = "clientConnection")]
        client: Client,
        logging: Logging,
        hostname_override: String,
        bind_address: String = "0.0.0.0".to_owned(),
        healthz_bind_address: String = format!("0.0.0.0:{HEALTHZ_PORT}"),
        metrics_bind_address: String = format!("127.0.0.1:{METRICS_PORT}"),
        bind_address_hard_fail: bool,
        enable_profiling: bool,
        show_hidden_metrics_for_version: String,
        mode: Word<Mode>,
        iptables: Iptables,
        ipvs: Ipvs,
        nftables: Nftables,
        winkernel: Winkernel,
        detect_local_mode: Word<DetectLocalMode>,
        detect_local: DetectLocal,
        /// One text in the file, split at its commas.
        #[serde(rename = "clusterCIDR", serialize_with = "joined", deserialize_with = "split")]
        cluster_cidrs: Vec<String>,
        /// `None` is written `null`, an empty list `[]`.
        node_port_addresses: Option<Vec<String>>,
        oom_score_adj: i32 = -999,
        conntrack: Conntrack,
        config_sync_period: GoDuration = GoDuration::from_secs(15 * 60),
        /// Of the old userspace mode, and always written empty: `ferry.userspace.portRange` has its place.
        port_range: String,
        #[serde(skip_serializing_if = "is_default")]
        windows_run_as_service: bool,
        #[serde(skip_serializing_if = "is_default")]
        ferry: Ferry,
    }

    /// `clientConnection`
    "ClientConnectionConfiguration" Client {
        kubeconfig: String,
        accept_content_types: String,
        content_type: String = "application/vnd.kubernetes.protobuf".to_owned(),
        qps: f32 = 5.0,
        burst: i32 = 10,
    }

    /// `logging`
    "LoggingConfiguration" Logging {
        format: Word<Format> = Word::Known(Format::Text),
        flush_frequency: FlushFrequency = FlushFrequency::text(GoDuration::from_secs(5)),
        verbosity: u32,
        #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "vmodule")]
        vmodule: Vec<VModule>,
        options: FormatOptions,
    }

    /// A pattern of file names and the verbosity of what matches.
    "VModuleItem" VModule {
        #[serde(rename = "filePattern")]
        pattern: String,
        verbosity: u32,
    }

    /// `logging.options`
    "FormatOptions" FormatOptions {
        text: TextOptions,
        json: TextOptions,
    }

    /// `logging.options.text` and `logging.options.json`
    "TextOptions" TextOptions {
        #[serde(skip_serializing_if = "is_default")]
        split_stream: bool,
        info_buffer_size: Quantity,
    }

    /// `iptables`
    "KubeProxyIPTablesConfiguration" Iptables {
        masquerade_bit: i32 = 14,
        masquerade_all: bool,
        localhost_node_ports: bool = true,
        sync_period: GoDuration = GoDuration::from_secs(30),
        min_sync_period: GoDuration = GoDuration::from_secs(1),
    }

    /// `ipvs`
    "KubeProxyIPVSConfiguration" Ipvs {
        sync_period: GoDuration,
        min_sync_period: GoDuration,
        scheduler: String,
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Option<Vec<String>>,
        #[serde(rename = "strictARP")]
        strict_arp: bool,
        tcp_timeout: GoDuration,
        tcp_fin_timeout: GoDuration,
        udp_timeout: GoDuration,
    }

    /// `nftables`
    "KubeProxyNFTablesConfiguration" Nftables {
        masquerade_bit: i32 = 14,
        masquerade_all: bool,
        sync_period: GoDuration,
        min_sync_period: GoDuration,
    }

    /// `winkernel`: kept only to be written back.
    "KubeProxyWinkernelConfiguration" Winkernel {
        network_name: String,
        source_vip: String,
        #[serde(rename = "enableDSR")]
        enable_dsr: bool,
        root_hns_endpoint_name: String,
        forward_health_check_vip: bool,
    }

    /// `detectLocal`
    "DetectLocalConfiguration" DetectLocal {
        bridge_interface: String,
        interface_name_prefix: String,
    }

    /// `conntrack`
    "KubeProxyConntrackConfiguration" Conntrack {
        max_per_core: i32 = 32 * 1024,
        min: i32 = 128 * 1024,
        tcp_established_timeout: GoDuration = GoDuration::from_secs(24 * 3600),
        tcp_close_wait_timeout: GoDuration = GoDuration::from_secs(3600),
        tcp_be_liberal: bool,
        udp_timeout: GoDuration,
        udp_stream_timeout: GoDuration,
    }

    /// `ferry`: what kube-proxy does not have.
    "Ferry" Ferry {
        manifests: String,
        status_socket: String = STATUS_SOCKET.to_owned(),
        traffic_counters: bool,
        kube_proxy_rules: bool,
        hold_node_ports: bool,
        nftables: FerryNftables,
        userspace: FerryUserspace,
    }

    /// `ferry.nftables`
    "FerryNftables" FerryNftables {
        localhost_node_ports: bool,
        fast_path: bool,
    }

    /// `ferry.userspace`
    "FerryUserspace" FerryUserspace {
        bind: bool,
        port_range: String,
        udp_timeout: GoDuration = GoDuration::from_millis(250),
    }
}

/// A duration that is written back in the form it was read in: a text, or a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlushFrequency {
    pub duration: GoDuration,
    pub is_number: bool,
}

/// `detectLocalMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectLocalMode {
    ClusterCidr,
    NodeCidr,
    BridgeInterface,
    InterfaceNamePrefix,
}

/// The sections of the file that are a mode's own. A mode without any goes by those of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Iptables,
    Ipvs,
    Nftables,
    Userspace,
}

/// How often to sync, and whether to masquerade everything: each mode has a section for it, one is in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub masquerade_all: bool,
}

impl Config {
    /// Which sections count.
    pub fn section(&self) -> Section {
        self.mode.known().map_or(Section::Iptables, |mode| mode.section)
    }

    /// What the section of the mode says. ipvs has no masqueradeAll of its own, userspace mode no section.
    pub fn pace(&self) -> Pace {
        let (sync_period, min_sync_period, masquerade_all) = match self.section() {
            Section::Ipvs => (
                self.ipvs.sync_period,
                self.ipvs.min_sync_period,
                self.iptables.masquerade_all,
            ),
            Section::Nftables => (
                self.nftables.sync_period,
                self.nftables.min_sync_period,
                self.nftables.masquerade_all,
            ),
            Section::Iptables | Section::Userspace => (
                self.iptables.sync_period,
                self.iptables.min_sync_period,
                self.iptables.masquerade_all,
            ),
        };
        Pace {
            sync_period,
            min_sync_period,
            masquerade_all,
        }
    }

    /// Says it in the section of the mode, and nothing in the others, as kube-proxy writes it.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        let none = GoDuration::ZERO;
        (self.iptables.sync_period, self.iptables.min_sync_period) = (none, none);
        (self.ipvs.sync_period, self.ipvs.min_sync_period) = (none, none);
        (self.nftables.sync_period, self.nftables.min_sync_period) = (none, none);
        let (sync, min) = match self.section() {
            Section::Ipvs => (&mut self.ipvs.sync_period, &mut self.ipvs.min_sync_period),
            Section::Nftables => (&mut self.nftables.sync_period, &mut self.nftables.min_sync_period),
            Section::Iptables | Section::Userspace => {
                (&mut self.iptables.sync_period, &mut self.iptables.min_sync_period)
            }
        };
        (*sync, *min) = (pace.sync_period, pace.min_sync_period);
        let nftables = self.section() == Section::Nftables;
        self.iptables.masquerade_all = pace.masquerade_all && !nftables;
        self.nftables.masquerade_all = pace.masquerade_all && nftables;
    }
}

impl FlushFrequency {
    pub const fn text(duration: GoDuration) -> Self {
        Self {
            duration,
            is_number: false,
        }
    }

    /// The duration, to be set by a text.
    pub fn as_text(&mut self) -> &mut GoDuration {
        self.is_number = false;
        &mut self.duration
    }
}

impl Named for DetectLocalMode {
    const ALL: &'static [Self] = &[
        Self::ClusterCidr,
        Self::NodeCidr,
        Self::BridgeInterface,
        Self::InterfaceNamePrefix,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

impl Named for Mode {
    const ALL: &'static [Self] = Mode::ALL;

    fn name(self) -> &'static str {
        self.as_str()
    }
}

impl Named for Format {
    const ALL: &'static [Self] = &[Self::Text, Self::Json];

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn joined<S: Serializer>(texts: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&texts.join(","))
}

fn split<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(if text.is_empty() {
        Vec::new()
    } else {
        text.split(',').map(str::to_owned).collect()
    })
}

fn vmodule<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<VModule>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "[]v1.VModuleItem")]
    struct Items(Vec<VModule>);
    Items::deserialize(deserializer).map(|items| items.0)
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_number {
            serializer.serialize_i64(self.duration.nanos())
        } else {
            self.duration.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "int64")]
        struct Raw(Scalar);
        let read = match Raw::deserialize(deserializer)?.0 {
            Scalar::Text(text) => GoDuration::parse(&text).map(Self::text),
            Scalar::Number(text) => match text.parse() {
                Ok(nanos) => Ok(Self {
                    duration: GoDuration::from_nanos(nanos),
                    is_number: true,
                }),
                Err(_) => Err(format!(
                    "json: cannot unmarshal number {text} into Go value of type int64"
                )),
            },
        };
        read.map_err(serde::de::Error::custom)
    }
}
