//! What the configuration means: checked, typed and immutable. The daemon sees nothing else.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::Likeness;
use ferry_sources::kube::Encoding;
use ipnet::IpNet;

use crate::cli::flags::Typed;
use crate::gates::Gates;
use crate::logging::Logging;
use crate::modes::Mode;

/// Where Services, EndpointSlices and Nodes come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A directory of YAML or JSON files.
    Manifests(PathBuf),
    /// The Kubernetes API.
    Api(ApiClient),
}

/// How to reach the API server. Neither `kubeconfig` nor `master`: the in-cluster configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiClient {
    pub kubeconfig: Option<PathBuf>,
    /// Replaces the kubeconfig's server.
    pub master: Option<String>,
    /// Requests per second; `None` is unlimited.
    pub qps: Option<f32>,
    pub burst: u32,
    /// How objects are asked for.
    pub encoding: Encoding,
}

/// How pod traffic of this node is told from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Source address in the cluster's pod range; empty: never.
    ClusterCidr(Vec<IpNet>),
    /// Source address in the Node's `spec.podCIDRs`.
    NodeCidr,
    BridgeInterface(String),
    InterfaceNamePrefix(String),
}

/// On which addresses of the node its node ports answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Unset: every address.
    All,
    /// The node's primary address of each family.
    Primary,
    Cidrs(Vec<IpNet>),
}

/// Connection-tracking sysctls; zero leaves a value as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

/// Settings of iptables mode; ipvs mode masquerades by the same bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iptables {
    pub localhost_node_ports: bool,
    /// 0 to 31.
    pub masquerade_bit: u8,
}

/// Settings of ipvs mode alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// Never empty.
    pub scheduler: String,
    pub exclude_cidrs: Vec<IpNet>,
    pub strict_arp: bool,
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
}

/// Settings of nftables mode alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nftables {
    /// 0 to 31.
    pub masquerade_bit: u8,
    /// Answer node ports on 127.0.0.1 and ::1 (ours; kube-proxy cannot).
    pub localhost_node_ports: bool,
    /// Let a flowtable carry long TCP connections.
    pub fast_path: bool,
}

/// Settings of userspace mode alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Userspace {
    /// Listen on the virtual addresses themselves instead of redirecting to a proxy port by rules.
    pub bind: bool,
    pub ports: Option<PortRange>,
    /// How long a UDP association outlives its last packet.
    pub udp_timeout: Duration,
}

/// An inclusive, non-empty range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// The whole configuration, after defaults, flags, folding and validation.
#[derive(Clone, Debug)]
pub struct Settings {
    pub mode: Mode,
    pub source: Source,
    /// Trimmed and lower-cased; `None`: the kernel's host name.
    pub hostname_override: Option<String>,

    pub sync_period: Duration,
    pub min_sync_period: Duration,

    pub bind_address: IpAddr,
    /// `None`: not served.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `None`: not served.
    pub metrics_bind_address: Option<SocketAddr>,
    pub bind_address_hard_fail: bool,
    pub profiling: bool,

    pub detect_local: DetectLocal,
    pub node_port_addresses: NodePortAddresses,
    pub masquerade_all: bool,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,

    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub userspace: Userspace,

    pub gates: Gates,
    pub logging: Logging,

    /// The local socket that `ferry status` asks; `None`: not served.
    pub status_socket: Option<PathBuf>,
    pub likeness: Likeness,
    /// Keep services' ports from processes on this node.
    pub hold_node_ports: bool,
    /// Per-service and per-endpoint connection counters in the metrics.
    pub traffic_counters: bool,

    /// The Kubernetes version that is reported, `v1.36.4` unless `--version=v...` says otherwise.
    pub reported_version: String,
    /// Only ever checked for its family.
    pub winkernel_source_vip: Option<IpAddr>,
    /// The configuration file these settings were read from, to be watched.
    pub config_file: Option<PathBuf>,
    /// The body of `/configz`.
    pub configz: String,
    /// Every flag with its value as `/flagz` shows it, sorted by name.
    pub flagz: Vec<(&'static str, String)>,
    /// The command line behind it all, to read a changed file with.
    pub(super) typed: Arc<Typed>,
}
