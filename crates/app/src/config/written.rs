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

/// A whole configuration. [`Config::default`] is what kube-proxy runs with when nothing is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyConfiguration", rename_all = "camelCase")]
pub struct Config {
    pub kind: String,
    pub api_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    #[serde(rename = "clientConnection")]
    pub client: Client,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: Word<Mode>,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: Word<DetectLocalMode>,
    pub detect_local: DetectLocal,
    /// One text in the file, split at its commas.
    #[serde(rename = "clusterCIDR", serialize_with = "joined", deserialize_with = "split")]
    pub cluster_cidrs: Vec<String>,
    /// `None` is written `null`, an empty list `[]`.
    pub node_port_addresses: Option<Vec<String>>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    /// Of the old userspace mode, and always written empty: `ferry.userspace.portRange` has its place.
    pub port_range: String,
    #[serde(skip_serializing_if = "is_default")]
    pub windows_run_as_service: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub ferry: Ferry,
}

/// `clientConnection`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "ClientConnectionConfiguration", rename_all = "camelCase")]
pub struct Client {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f32,
    pub burst: i32,
}

/// `logging`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "LoggingConfiguration", rename_all = "camelCase")]
pub struct Logging {
    pub format: Word<Format>,
    pub flush_frequency: FlushFrequency,
    pub verbosity: u32,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "vmodule")]
    pub vmodule: Vec<VModule>,
    pub options: FormatOptions,
}

/// A duration that is written back in the form it was read in: a text, or a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlushFrequency {
    pub duration: GoDuration,
    pub is_number: bool,
}

/// A pattern of file names and the verbosity of what matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename = "VModuleItem")]
pub struct VModule {
    #[serde(rename = "filePattern")]
    pub pattern: String,
    pub verbosity: u32,
}

/// `logging.options`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FormatOptions {
    pub text: TextOptions,
    pub json: TextOptions,
}

/// `logging.options.text` and `logging.options.json`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TextOptions {
    #[serde(skip_serializing_if = "is_default")]
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

/// `iptables`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyIPTablesConfiguration", rename_all = "camelCase")]
pub struct Iptables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub localhost_node_ports: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// `ipvs`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyIPVSConfiguration", rename_all = "camelCase")]
pub struct Ipvs {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

/// `nftables`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyNFTablesConfiguration", rename_all = "camelCase")]
pub struct Nftables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// `winkernel`: kept only to be written back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyWinkernelConfiguration", rename_all = "camelCase")]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

/// `detectLocalMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectLocalMode {
    ClusterCidr,
    NodeCidr,
    BridgeInterface,
    InterfaceNamePrefix,
}

/// `detectLocal`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "DetectLocalConfiguration", rename_all = "camelCase")]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

/// `conntrack`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename = "KubeProxyConntrackConfiguration", rename_all = "camelCase")]
pub struct Conntrack {
    pub max_per_core: i32,
    pub min: i32,
    pub tcp_established_timeout: GoDuration,
    pub tcp_close_wait_timeout: GoDuration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: GoDuration,
    pub udp_stream_timeout: GoDuration,
}

/// `ferry`: what kube-proxy does not have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ferry {
    pub manifests: String,
    pub status_socket: String,
    pub traffic_counters: bool,
    pub nftables: FerryNftables,
    pub userspace: FerryUserspace,
}

/// `ferry.nftables`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FerryNftables {
    pub localhost_node_ports: bool,
}

/// `ferry.userspace`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FerryUserspace {
    pub bind: bool,
    pub port_range: String,
    pub udp_timeout: GoDuration,
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

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            feature_gates: BTreeMap::new(),
            client: Client::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: "0.0.0.0".to_owned(),
            healthz_bind_address: format!("0.0.0.0:{HEALTHZ_PORT}"),
            metrics_bind_address: format!("127.0.0.1:{METRICS_PORT}"),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: Word::Blank,
            iptables: Iptables::default(),
            ipvs: Ipvs::default(),
            nftables: Nftables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: Word::Blank,
            detect_local: DetectLocal::default(),
            cluster_cidrs: Vec::new(),
            node_port_addresses: None,
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::from_secs(15 * 60),
            port_range: String::new(),
            windows_run_as_service: false,
            ferry: Ferry::default(),
        }
    }
}

impl Default for Client {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            qps: 5.0,
            burst: 10,
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: Word::Known(Format::Text),
            flush_frequency: FlushFrequency::text(GoDuration::from_secs(5)),
            verbosity: 0,
            vmodule: Vec::new(),
            options: FormatOptions::default(),
        }
    }
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
        }
    }
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: GoDuration::ZERO,
            min_sync_period: GoDuration::ZERO,
        }
    }
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: GoDuration::from_secs(24 * 3600),
            tcp_close_wait_timeout: GoDuration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: GoDuration::ZERO,
            udp_stream_timeout: GoDuration::ZERO,
        }
    }
}

impl Default for Ferry {
    fn default() -> Self {
        Self {
            manifests: String::new(),
            status_socket: STATUS_SOCKET.to_owned(),
            traffic_counters: false,
            nftables: FerryNftables::default(),
            userspace: FerryUserspace::default(),
        }
    }
}

impl Default for FerryUserspace {
    fn default() -> Self {
        Self {
            bind: false,
            port_range: String::new(),
            udp_timeout: GoDuration::from_millis(250),
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
