//! Every flag of the daemon, in the order of the help.

use super::{Flag, Kind};

/// What a flag is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Setup,
    Objects,
    Node,
    Mode,
    Iptables,
    Ipvs,
    Nftables,
    Userspace,
    Conntrack,
    Logging,
    Ignored,
}

impl Group {
    /// In the order of the help.
    pub const ALL: [Self; 11] = [
        Self::Setup,
        Self::Objects,
        Self::Node,
        Self::Mode,
        Self::Iptables,
        Self::Ipvs,
        Self::Nftables,
        Self::Userspace,
        Self::Conntrack,
        Self::Logging,
        Self::Ignored,
    ];

    /// The heading in the help.
    pub fn title(self) -> &'static str {
        match self {
            Self::Setup => "What to do",
            Self::Objects => "Where Services and endpoints come from",
            Self::Node => "This node and what it serves",
            Self::Mode => "How traffic is carried",
            Self::Iptables => "iptables mode",
            Self::Ipvs => "ipvs mode",
            Self::Nftables => "nftables mode",
            Self::Userspace => "userspace mode",
            Self::Conntrack => "Connection tracking",
            Self::Logging => "Logging",
            Self::Ignored => "Accepted for compatibility",
        }
    }
}

/// A flag that `--config` makes void.
const fn void(name: &'static str, group: Group, kind: Kind, help: &'static str) -> Flag {
    Flag {
        name,
        short: None,
        kind,
        group,
        counts_with_config: false,
        deprecated: None,
        help,
    }
}

/// A flag that counts whether or not there is a configuration file.
const fn lasting(name: &'static str, group: Group, kind: Kind, help: &'static str) -> Flag {
    Flag {
        counts_with_config: true,
        ..void(name, group, kind, help)
    }
}

/// The flags of the daemon.
pub static FLAGS: &[Flag] = &[
    lasting(
        "config",
        Group::Setup,
        Kind::Path(|t| &mut t.config_file),
        "Read the configuration from this file. Most flags below then have no effect (a warning says so); the others are marked with *.",
    ),
    lasting(
        "write-config-to",
        Group::Setup,
        Kind::Path(|t| &mut t.write_config_to),
        "Write the configuration in force to this file and exit.",
    ),
    lasting(
        "cleanup",
        Group::Setup,
        Kind::Bool(|t| &mut t.cleanup),
        "Remove every rule that any mode may have left on this node and exit.",
    ),
    lasting(
        "init-only",
        Group::Setup,
        Kind::Bool(|t| &mut t.init_only),
        "Do the part of the set-up that needs full privileges and exit; afterwards CAP_NET_ADMIN is enough.",
    ),
    lasting(
        "version",
        Group::Setup,
        Kind::Version,
        "Print the version and exit; --version=raw prints all there is to know, --version=vX.Y.Z... changes the version that is reported.",
    ),
    Flag {
        short: Some('h'),
        ..lasting("help", Group::Setup, Kind::Help, "Show this text.")
    },
    void(
        "feature-gates",
        Group::Setup,
        Kind::Gates,
        "Switch features on or off; every gate of Kubernetes 1.36 is known, see 'ferry help gates'.",
    ),
    lasting(
        "manifests",
        Group::Objects,
        Kind::Path(|t| &mut t.config.ferry.manifests),
        "Follow a directory of YAML or JSON files instead of an API server.",
    ),
    void(
        "kubeconfig",
        Group::Objects,
        Kind::Path(|t| &mut t.config.client.kubeconfig),
        "Credentials for the API server. Without it and without --master: those of the pod.",
    ),
    lasting(
        "master",
        Group::Objects,
        Kind::Text(|t| &mut t.master),
        "URL of the API server; overrides the one in the kubeconfig.",
    ),
    void(
        "kube-api-content-type",
        Group::Objects,
        Kind::Text(|t| &mut t.config.client.content_type),
        "Accepted for compatibility; objects travel as JSON.",
    ),
    void(
        "kube-api-qps",
        Group::Objects,
        Kind::Float32(|t| &mut t.config.client.qps),
        "Requests per second to the API server; negative is unlimited.",
    ),
    void(
        "kube-api-burst",
        Group::Objects,
        Kind::Int32(|t| &mut t.config.client.burst),
        "Requests that may exceed the rate at once.",
    ),
    void(
        "config-sync-period",
        Group::Objects,
        Kind::Duration(|t| &mut t.config.config_sync_period),
        "Accepted for compatibility; objects are never stale. Must be greater than 0.",
    ),
    lasting(
        "hostname-override",
        Group::Node,
        Kind::Text(|t| &mut t.hostname_override),
        "Name of the Node this runs on; the kernel's host name by default.",
    ),
    void(
        "bind-address",
        Group::Node,
        Kind::Ip(|t| &mut t.config.bind_address),
        "The node's primary IP, if it is not the one in the Node object. In userspace mode also the address to listen on.",
    ),
    void(
        "healthz-bind-address",
        Group::Node,
        Kind::HostPort(|t| &mut t.config.healthz_bind_address),
        "Where to serve /healthz and /livez.",
    ),
    void(
        "metrics-bind-address",
        Group::Node,
        Kind::HostPort(|t| &mut t.config.metrics_bind_address),
        "Where to serve /metrics, /proxyMode, /configz and the like.",
    ),
    Flag {
        deprecated: Some(
            "This flag is deprecated and will be removed in a future release. Please use --healthz-bind-address instead.",
        ),
        ..void(
            "healthz-port",
            Group::Node,
            Kind::Int32(|t| &mut t.healthz_port),
            "Port of the health server; 0 switches it off.",
        )
    },
    Flag {
        deprecated: Some(
            "This flag is deprecated and will be removed in a future release. Please use --metrics-bind-address instead.",
        ),
        ..void(
            "metrics-port",
            Group::Node,
            Kind::Int32(|t| &mut t.metrics_port),
            "Port of the metrics server; 0 switches it off.",
        )
    },
    void(
        "bind-address-hard-fail",
        Group::Node,
        Kind::Bool(|t| &mut t.config.bind_address_hard_fail),
        "Exit if a server's address cannot be bound, instead of trying again.",
    ),
    lasting(
        "status-socket",
        Group::Node,
        Kind::Path(|t| &mut t.config.ferry.status_socket),
        "Local socket that 'ferry status' asks; empty switches it off.",
    ),
    void(
        "profiling",
        Group::Node,
        Kind::Bool(|t| &mut t.config.enable_profiling),
        "Serve /debug/pprof and /debug/flags next to the metrics.",
    ),
    lasting(
        "traffic-counters",
        Group::Node,
        Kind::Bool(|t| &mut t.config.ferry.traffic_counters),
        "Count connections per service port and per endpoint, and show them in the metrics.",
    ),
    void(
        "show-hidden-metrics-for-version",
        Group::Node,
        Kind::Text(|t| &mut t.config.show_hidden_metrics_for_version),
        "Accepted for compatibility, no metric is hidden; only the previous minor version (1.35) is allowed.",
    ),
    void(
        "oom-score-adj",
        Group::Node,
        Kind::Int32(|t| &mut t.config.oom_score_adj),
        "The process's oom_score_adj, -1000 to 1000.",
    ),
    void(
        "proxy-mode",
        Group::Mode,
        Kind::Word(
            |t| &mut t.config.mode,
            &["iptables", "ipvs", "nftables", "userspace"],
        ),
        "iptables, ipvs, nftables or userspace; empty is iptables.",
    ),
    void(
        "masquerade-all",
        Group::Mode,
        Kind::Bool(|t| &mut t.config.masquerade_all),
        "Masquerade everything sent to cluster IPs.",
    ),
    void(
        "detect-local-mode",
        Group::Mode,
        Kind::Word(
            |t| &mut t.config.detect_local_mode,
            &[
                "ClusterCIDR",
                "NodeCIDR",
                "BridgeInterface",
                "InterfaceNamePrefix",
            ],
        ),
        "How traffic of this node's pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; empty is ClusterCIDR.",
    ),
    void(
        "cluster-cidr",
        Group::Mode,
        Kind::Text(|t| &mut t.cluster_cidr),
        "The pods' address range, or one range per family separated by a comma (ClusterCIDR).",
    ),
    void(
        "pod-bridge-interface",
        Group::Mode,
        Kind::Text(|t| &mut t.config.detect_local.bridge_interface),
        "The bridge that pods are attached to (BridgeInterface).",
    ),
    void(
        "pod-interface-name-prefix",
        Group::Mode,
        Kind::Text(|t| &mut t.config.detect_local.interface_name_prefix),
        "How the names of the pods' interfaces begin (InterfaceNamePrefix).",
    ),
    void(
        "nodeport-addresses",
        Group::Mode,
        Kind::List(|t| &mut t.config.node_port_addresses),
        "Answer node ports only on addresses in these CIDRs, or only on the node's 'primary' addresses. Unset: all addresses (nftables mode: primary).",
    ),
    void(
        "iptables-masquerade-bit",
        Group::Iptables,
        Kind::Int32(|t| &mut t.config.iptables.masquerade_bit),
        "Bit of the packet mark that asks for masquerading, 0 to 31; iptables and ipvs modes.",
    ),
    void(
        "iptables-localhost-nodeports",
        Group::Iptables,
        Kind::Bool(|t| &mut t.config.iptables.localhost_node_ports),
        "Answer node ports on 127.0.0.1.",
    ),
    void(
        "iptables-sync-period",
        Group::Iptables,
        Kind::Duration(|t| &mut t.iptables_sync_period),
        "How often rules are looked after, and a failed sync is tried again; every mode but ipvs.",
    ),
    void(
        "iptables-min-sync-period",
        Group::Iptables,
        Kind::Duration(|t| &mut t.iptables_min_sync_period),
        "Least time between two syncs; every mode but ipvs.",
    ),
    void(
        "ipvs-scheduler",
        Group::Ipvs,
        Kind::Text(|t| &mut t.config.ipvs.scheduler),
        "The kernel's scheduler (rr, wrr, lc, wlc, sh, mh, ...); empty is rr.",
    ),
    void(
        "ipvs-exclude-cidrs",
        Group::Ipvs,
        Kind::List(|t| &mut t.config.ipvs.exclude_cidrs),
        "Virtual servers in these CIDRs are not ours and are left alone.",
    ),
    void(
        "ipvs-strict-arp",
        Group::Ipvs,
        Kind::Bool(|t| &mut t.config.ipvs.strict_arp),
        "Set arp_ignore to 1 and arp_announce to 2.",
    ),
    void(
        "ipvs-tcp-timeout",
        Group::Ipvs,
        Kind::Duration(|t| &mut t.config.ipvs.tcp_timeout),
        "Time-out of idle TCP connections; 0 leaves it.",
    ),
    void(
        "ipvs-tcpfin-timeout",
        Group::Ipvs,
        Kind::Duration(|t| &mut t.config.ipvs.tcp_fin_timeout),
        "Time-out of TCP connections after a FIN; 0 leaves it.",
    ),
    void(
        "ipvs-udp-timeout",
        Group::Ipvs,
        Kind::Duration(|t| &mut t.config.ipvs.udp_timeout),
        "Time-out of UDP; 0 leaves it.",
    ),
    void(
        "ipvs-sync-period",
        Group::Ipvs,
        Kind::Duration(|t| &mut t.ipvs_sync_period),
        "As --iptables-sync-period, for ipvs mode.",
    ),
    void(
        "ipvs-min-sync-period",
        Group::Ipvs,
        Kind::Duration(|t| &mut t.ipvs_min_sync_period),
        "As --iptables-min-sync-period, for ipvs mode.",
    ),
    lasting(
        "nftables-localhost-nodeports",
        Group::Nftables,
        Kind::Bool(|t| &mut t.config.ferry.nftables_localhost_node_ports),
        "Answer node ports on 127.0.0.1 and ::1.",
    ),
    lasting(
        "userspace-bind",
        Group::Userspace,
        Kind::Bool(|t| &mut t.config.ferry.userspace_bind),
        "Listen on the services' own addresses, or on local ports in their place, instead of writing redirect rules.",
    ),
    lasting(
        "proxy-port-range",
        Group::Userspace,
        Kind::Text(|t| &mut t.config.ferry.proxy_port_range),
        "Local ports to listen on: N, FIRST-LAST or FIRST+COUNT; empty lets the kernel choose.",
    ),
    lasting(
        "udp-timeout",
        Group::Userspace,
        Kind::Duration(|t| &mut t.config.ferry.udp_timeout),
        "How long a UDP association outlives its last packet.",
    ),
    void(
        "conntrack-max-per-core",
        Group::Conntrack,
        Kind::Int32(|t| &mut t.config.conntrack.max_per_core),
        "Connections to track per CPU core; 0 leaves the limit and ignores --conntrack-min.",
    ),
    void(
        "conntrack-min",
        Group::Conntrack,
        Kind::Int32(|t| &mut t.config.conntrack.min),
        "Connections to track at least.",
    ),
    void(
        "conntrack-tcp-timeout-established",
        Group::Conntrack,
        Kind::Duration(|t| &mut t.config.conntrack.tcp_established_timeout),
        "Time-out of idle TCP connections; 0 leaves it.",
    ),
    void(
        "conntrack-tcp-timeout-close-wait",
        Group::Conntrack,
        Kind::Duration(|t| &mut t.config.conntrack.tcp_close_wait_timeout),
        "Time-out of TCP connections in CLOSE_WAIT; 0 leaves it.",
    ),
    void(
        "conntrack-tcp-be-liberal",
        Group::Conntrack,
        Kind::Bool(|t| &mut t.config.conntrack.tcp_be_liberal),
        "Do not take out-of-window TCP packets for invalid ones.",
    ),
    void(
        "conntrack-udp-timeout",
        Group::Conntrack,
        Kind::Duration(|t| &mut t.config.conntrack.udp_timeout),
        "Time-out of UDP without a reply; 0 leaves it.",
    ),
    void(
        "conntrack-udp-timeout-stream",
        Group::Conntrack,
        Kind::Duration(|t| &mut t.config.conntrack.udp_stream_timeout),
        "Time-out of UDP with replies; 0 leaves it.",
    ),
    Flag {
        short: Some('v'),
        ..lasting(
            "v",
            Group::Logging,
            Kind::Verbosity(|t| &mut t.config.logging.verbosity),
            "How much to log: 0 is the least, 2 shows changes, 4 and more are for debugging.",
        )
    },
    lasting(
        "vmodule",
        Group::Logging,
        Kind::VModule(|t| &mut t.config.logging.vmodule),
        "Verbosity by source file, for the text format.",
    ),
    lasting(
        "logging-format",
        Group::Logging,
        Kind::Word(|t| &mut t.config.logging.format, &["text", "json"]),
        "text or json.",
    ),
    lasting(
        "log-flush-frequency",
        Group::Logging,
        Kind::Duration(|t| &mut t.config.logging.flush_frequency),
        "Accepted for compatibility; every line is written at once. Must be greater than 0.",
    ),
    lasting(
        "log-text-split-stream",
        Group::Logging,
        Kind::Bool(|t| &mut t.config.logging.text.split_stream),
        "Text format: errors to stderr, the rest to stdout. Needs the gate LoggingAlphaOptions.",
    ),
    lasting(
        "log-text-info-buffer-size",
        Group::Logging,
        Kind::Size(|t| &mut t.config.logging.text.info_buffer_size),
        "Accepted for compatibility with the gate LoggingAlphaOptions.",
    ),
    lasting(
        "log-json-split-stream",
        Group::Logging,
        Kind::Bool(|t| &mut t.config.logging.json.split_stream),
        "JSON format: errors to stderr, the rest to stdout. Needs the gate LoggingAlphaOptions.",
    ),
    lasting(
        "log-json-info-buffer-size",
        Group::Logging,
        Kind::Size(|t| &mut t.config.logging.json.info_buffer_size),
        "Accepted for compatibility with the gate LoggingAlphaOptions.",
    ),
    void(
        "boot-id-file",
        Group::Ignored,
        Kind::Text(|t| &mut t.boot_id_file),
        "Accepted and not used.",
    ),
    void(
        "machine-id-file",
        Group::Ignored,
        Kind::Text(|t| &mut t.machine_id_file),
        "Accepted and not used.",
    ),
];

/// The flags that only the commands beside the daemon have.
pub static COMMAND_FLAGS: CommandFlags = CommandFlags {
    output: &[Flag {
        short: Some('o'),
        ..lasting(
            "output",
            Group::Setup,
            Kind::Word(|t| &mut t.extra.output, &["text", "json"]),
            "How to print: text or json.",
        )
    }],
    mode: &[lasting(
        "mode",
        Group::Mode,
        Kind::Word(
            |t| &mut t.config.mode,
            &["iptables", "ipvs", "nftables", "userspace"],
        ),
        "Short for --proxy-mode.",
    )],
    packet: &[
        lasting(
            "from",
            Group::Setup,
            Kind::Text(|t| &mut t.extra.from),
            "Where the packet comes from: an address.",
        ),
        lasting(
            "to",
            Group::Setup,
            Kind::Text(|t| &mut t.extra.to),
            "Where it is sent: ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, the protocol being tcp, udp or sctp.",
        ),
    ],
    socket: &[lasting(
        "socket",
        Group::Setup,
        Kind::Path(|t| &mut t.config.ferry.status_socket),
        "The daemon's --status-socket.",
    )],
    keep: &[lasting(
        "keep",
        Group::Setup,
        Kind::Bool(|t| &mut t.extra.keep),
        "Leave everything running at the end, to play with.",
    )],
    help: &[Flag {
        short: Some('h'),
        ..lasting("help", Group::Setup, Kind::Help, "Show this text.")
    }],
};

/// The commands' own flags, in pieces that commands share.
#[derive(Debug)]
pub struct CommandFlags {
    pub output: &'static [Flag],
    pub mode: &'static [Flag],
    pub packet: &'static [Flag],
    pub socket: &'static [Flag],
    pub keep: &'static [Flag],
    pub help: &'static [Flag],
}
