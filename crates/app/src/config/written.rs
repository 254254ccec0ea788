//! The configuration as it was written: kube-proxy's fields with their types, sync settings already folded
//! into one, nothing judged yet. Flags and files both end here; validation turns it into
//! [`Settings`](super::Settings).

use std::collections::BTreeMap;

use super::values::{GoDuration, Quantity};

/// The port of the health server unless told otherwise.
pub const HEALTHZ_PORT: i32 = 10256;
/// The port of the metrics server unless told otherwise.
pub const METRICS_PORT: i32 = 10249;
/// Where `ferry status` finds the daemon unless told otherwise.
pub const STATUS_SOCKET: &str = "/run/ferry/ferry.sock";

/// A whole configuration. [`Config::default`] is what kube-proxy runs with when nothing is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub feature_gates: BTreeMap<String, bool>,
    pub client: Client,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    /// Of the mode in force.
    pub sync_period: GoDuration,
    /// Of the mode in force.
    pub min_sync_period: GoDuration,
    /// Of the mode in force.
    pub masquerade_all: bool,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    /// `None` is written `null`, an empty list `[]`.
    pub node_port_addresses: Option<Vec<String>>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    pub windows_run_as_service: bool,
    pub ferry: Ferry,
}

/// `clientConnection`
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f32,
    pub burst: i32,
}

/// `logging`
#[derive(Clone, Debug, PartialEq)]
pub struct Logging {
    pub format: String,
    pub flush_frequency: GoDuration,
    /// It is written back in the form it was read in: a number of nanoseconds or a text.
    pub flush_frequency_is_number: bool,
    pub verbosity: u32,
    pub vmodule: Vec<VModule>,
    pub text: FormatOptions,
    pub json: FormatOptions,
}

/// A pattern of file names and the verbosity of what matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VModule {
    pub pattern: String,
    pub verbosity: u32,
}

/// `logging.options.text` and `logging.options.json`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FormatOptions {
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

/// `iptables`
#[derive(Clone, Debug, PartialEq)]
pub struct Iptables {
    pub masquerade_bit: i32,
    pub localhost_node_ports: bool,
}

/// `ipvs`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ipvs {
    pub scheduler: String,
    pub exclude_cidrs: Option<Vec<String>>,
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

/// `nftables`
#[derive(Clone, Debug, PartialEq)]
pub struct Nftables {
    pub masquerade_bit: i32,
}

/// `winkernel`: kept only to be written back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

/// `detectLocal`, and `clusterCIDR` split at its commas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
    pub cluster_cidrs: Vec<String>,
}

/// `conntrack`
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Ferry {
    pub manifests: String,
    pub status_socket: String,
    pub traffic_counters: bool,
    pub nftables_localhost_node_ports: bool,
    pub userspace_bind: bool,
    pub proxy_port_range: String,
    pub udp_timeout: GoDuration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
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
            mode: String::new(),
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
            masquerade_all: false,
            iptables: Iptables {
                masquerade_bit: 14,
                localhost_node_ports: true,
            },
            ipvs: Ipvs::default(),
            nftables: Nftables { masquerade_bit: 14 },
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocal::default(),
            node_port_addresses: None,
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::from_secs(15 * 60),
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
            format: "text".to_owned(),
            flush_frequency: GoDuration::from_secs(5),
            flush_frequency_is_number: false,
            verbosity: 0,
            vmodule: Vec::new(),
            text: FormatOptions::default(),
            json: FormatOptions::default(),
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
            nftables_localhost_node_ports: false,
            userspace_bind: false,
            proxy_port_range: String::new(),
            udp_timeout: GoDuration::from_millis(250),
        }
    }
}
