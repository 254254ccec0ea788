//! Every flag, in the order of the help.

use super::{Flag, Kind};

/// A table of flags by subject. A row says whether the flag counts beside `--config` (`*`) or is void then (`-`), its
/// name and perhaps its letter, the type and place of its value, and what it is for.
macro_rules! flags {
    ($($group:tt {
        $($mark:tt $name:literal $($short:literal)? $kind:ident($place:expr) $(deprecated $deprecated:literal)?
            $help:literal;)*
    })*) => {
        &[$($(Flag {
            name: $name,
            short: flags!(@or_none $($short)?),
            kind: Kind::$kind($place),
            group: $group,
            counts_with_config: flags!(@counts $mark),
            deprecated: flags!(@or_none $($deprecated)?),
            help: $help,
        },)*)*]
    };
    (@or_none) => { None };
    (@or_none $value:literal) => { Some($value) };
    (@counts *) => { true };
    (@counts -) => { false };
}

/// The subject of the flags that say how to log.
pub const LOGGING: &str = "Logging";

/// The flags of the daemon.
pub static FLAGS: &[Flag] = flags! {
    "What to do" {
        * "config" Path(|t| &mut t.config_file)
            "Read the configuration from this file. Most flags below then have no effect (a warning says so); the others are marked with *.";
        * "write-config-to" Path(|t| &mut t.write_config_to)
            "Write the configuration in force to this file and exit.";
        * "cleanup" Bool(|t| &mut t.cleanup)
            "Remove every rule that any mode may have left on this node and exit.";
        * "init-only" Bool(|t| &mut t.init_only)
            "Do the part of the set-up that needs full privileges and exit; afterwards CAP_NET_ADMIN is enough.";
        * "version" Version(|t| &mut t.version)
            "Print the version and exit; --version=raw prints all there is to know, --version=vX.Y.Z... changes the version that is reported.";
        * "help" 'h' Help(|t| &mut t.help)
            "Show this text.";
        - "feature-gates" Gates(|t| &mut t.config.feature_gates)
            "Switch features on or off; every gate of Kubernetes 1.36 is known, see 'ferry help gates'.";
    }
    "Where Services and endpoints come from" {
        * "manifests" Path(|t| &mut t.config.ferry.manifests)
            "Follow a directory of YAML or JSON files instead of an API server.";
        - "kubeconfig" Path(|t| &mut t.config.client.kubeconfig)
            "Credentials for the API server. Without it and without --master: those of the pod.";
        * "master" Text(|t| &mut t.master)
            "URL of the API server; overrides the one in the kubeconfig.";
        - "kube-api-content-type" Text(|t| &mut t.config.client.content_type)
            "How objects are asked for: application/vnd.kubernetes.protobuf, or application/json.";
        - "kube-api-qps" Float32(|t| &mut t.config.client.qps)
            "Requests per second to the API server; negative is unlimited.";
        - "kube-api-burst" Int32(|t| &mut t.config.client.burst)
            "Requests that may exceed the rate at once.";
        - "config-sync-period" Duration(|t| &mut t.config.config_sync_period)
            "Accepted for compatibility; objects are never stale. Must be greater than 0.";
    }
    "This node and what it serves" {
        * "hostname-override" Text(|t| &mut t.hostname_override)
            "Name of the Node this runs on; the kernel's host name by default.";
        - "bind-address" Ip(|t| &mut t.config.bind_address)
            "The node's primary IP, if it is not the one in the Node object. In userspace mode also the address to listen on.";
        - "healthz-bind-address" HostPort(|t| &mut t.config.healthz_bind_address)
            "Where to serve /healthz and /livez.";
        - "metrics-bind-address" HostPort(|t| &mut t.config.metrics_bind_address)
            "Where to serve /metrics, /proxyMode, /configz and the like.";
        - "healthz-port" Int32(|t| &mut t.healthz_port)
            deprecated "This flag is deprecated and will be removed in a future release. Please use --healthz-bind-address instead."
            "Port of the health server; 0 switches it off.";
        - "metrics-port" Int32(|t| &mut t.metrics_port)
            deprecated "This flag is deprecated and will be removed in a future release. Please use --metrics-bind-address instead."
            "Port of the metrics server; 0 switches it off.";
        - "bind-address-hard-fail" Bool(|t| &mut t.config.bind_address_hard_fail)
            "Exit if a server's address cannot be bound, instead of trying again.";
        * "status-socket" Path(|t| &mut t.config.ferry.status_socket)
            "Local socket that 'ferry status' asks; empty switches it off.";
        - "profiling" Bool(|t| &mut t.config.enable_profiling)
            "Serve /debug/pprof and /debug/flags next to the metrics.";
        * "traffic-counters" Bool(|t| &mut t.config.ferry.traffic_counters)
            "Count connections per service port and per endpoint, and show them in the metrics.";
        - "show-hidden-metrics-for-version" Text(|t| &mut t.config.show_hidden_metrics_for_version)
            "Accepted for compatibility, no metric is hidden; only the previous minor version (1.35) is allowed.";
        - "oom-score-adj" Int32(|t| &mut t.config.oom_score_adj)
            "The process's oom_score_adj, -1000 to 1000.";
    }
    "How traffic is carried" {
        - "proxy-mode" Word(|t| &mut t.config.mode)
            "iptables, ipvs, nftables or userspace; empty is iptables.";
        - "masquerade-all" Bool(|t| &mut t.masquerade_all)
            "Masquerade everything sent to cluster IPs.";
        - "detect-local-mode" Word(|t| &mut t.config.detect_local_mode)
            "How traffic of this node's pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; empty is ClusterCIDR.";
        - "cluster-cidr" Text(|t| &mut t.cluster_cidr)
            "The pods' address range, or one range per family separated by a comma (ClusterCIDR).";
        - "pod-bridge-interface" Text(|t| &mut t.config.detect_local.bridge_interface)
            "The bridge that pods are attached to (BridgeInterface).";
        - "pod-interface-name-prefix" Text(|t| &mut t.config.detect_local.interface_name_prefix)
            "How the names of the pods' interfaces begin (InterfaceNamePrefix).";
        - "nodeport-addresses" List(|t| &mut t.config.node_port_addresses)
            "Answer node ports only on addresses in these CIDRs, or only on the node's 'primary' addresses. Unset: all addresses (nftables mode: primary).";
        * "hold-node-ports" Bool(|t| &mut t.config.ferry.hold_node_ports)
            "Bind node ports, and external addresses that this node has, so that no process can; conflicts are told as events. Every mode but userspace, which has them anyway.";
        * "kube-proxy-rules" Bool(|t| &mut t.config.ferry.kube_proxy_rules)
            "Refuse and masquerade by kube-proxy's rules to the letter, with the waits they cause; every mode but userspace.";
    }
    "iptables mode" {
        - "iptables-masquerade-bit" Int32(|t| &mut t.config.iptables.masquerade_bit)
            "Bit of the packet mark that asks for masquerading, 0 to 31; iptables and ipvs modes.";
        - "iptables-localhost-nodeports" Bool(|t| &mut t.config.iptables.localhost_node_ports)
            "Answer node ports on 127.0.0.1.";
        - "iptables-sync-period" Duration(|t| &mut t.iptables_pace.sync_period)
            "How often rules are looked after, and a failed sync is tried again; every mode but ipvs.";
        - "iptables-min-sync-period" Duration(|t| &mut t.iptables_pace.min_sync_period)
            "Least time between two syncs; every mode but ipvs.";
    }
    "ipvs mode" {
        - "ipvs-scheduler" Text(|t| &mut t.config.ipvs.scheduler)
            "The kernel's scheduler (rr, wrr, lc, wlc, sh, mh, ...); empty is rr.";
        - "ipvs-exclude-cidrs" List(|t| &mut t.config.ipvs.exclude_cidrs)
            "Virtual servers in these CIDRs are not ours and are left alone.";
        - "ipvs-strict-arp" Bool(|t| &mut t.config.ipvs.strict_arp)
            "Set arp_ignore to 1 and arp_announce to 2.";
        - "ipvs-tcp-timeout" Duration(|t| &mut t.config.ipvs.tcp_timeout)
            "Time-out of idle TCP connections; 0 leaves it.";
        - "ipvs-tcpfin-timeout" Duration(|t| &mut t.config.ipvs.tcp_fin_timeout)
            "Time-out of TCP connections after a FIN; 0 leaves it.";
        - "ipvs-udp-timeout" Duration(|t| &mut t.config.ipvs.udp_timeout)
            "Time-out of UDP; 0 leaves it.";
        - "ipvs-sync-period" Duration(|t| &mut t.ipvs_pace.sync_period)
            "As --iptables-sync-period, for ipvs mode.";
        - "ipvs-min-sync-period" Duration(|t| &mut t.ipvs_pace.min_sync_period)
            "As --iptables-min-sync-period, for ipvs mode.";
    }
    "nftables mode" {
        * "nftables-localhost-nodeports" Bool(|t| &mut t.config.ferry.nftables.localhost_node_ports)
            "Answer node ports on 127.0.0.1 and ::1.";
        * "nftables-fast-path" Bool(|t| &mut t.config.ferry.nftables.fast_path)
            "Let the kernel's flowtable carry long TCP connections to services past all rules.";
    }
    "userspace mode" {
        * "userspace-bind" Bool(|t| &mut t.config.ferry.userspace.bind)
            "Listen on the services' own addresses, or on local ports in their place, instead of writing redirect rules.";
        * "proxy-port-range" Text(|t| &mut t.config.ferry.userspace.port_range)
            "Local ports to listen on: N, FIRST-LAST or FIRST+COUNT; empty lets the kernel choose.";
        * "udp-timeout" Duration(|t| &mut t.config.ferry.userspace.udp_timeout)
            "How long a UDP association outlives its last packet.";
    }
    "Connection tracking" {
        - "conntrack-max-per-core" Int32(|t| &mut t.config.conntrack.max_per_core)
            "Connections to track per CPU core; 0 leaves the limit and ignores --conntrack-min.";
        - "conntrack-min" Int32(|t| &mut t.config.conntrack.min)
            "Connections to track at least.";
        - "conntrack-tcp-timeout-established" Duration(|t| &mut t.config.conntrack.tcp_established_timeout)
            "Time-out of idle TCP connections; 0 leaves it.";
        - "conntrack-tcp-timeout-close-wait" Duration(|t| &mut t.config.conntrack.tcp_close_wait_timeout)
            "Time-out of TCP connections in CLOSE_WAIT; 0 leaves it.";
        - "conntrack-tcp-be-liberal" Bool(|t| &mut t.config.conntrack.tcp_be_liberal)
            "Do not take out-of-window TCP packets for invalid ones.";
        - "conntrack-udp-timeout" Duration(|t| &mut t.config.conntrack.udp_timeout)
            "Time-out of UDP without a reply; 0 leaves it.";
        - "conntrack-udp-timeout-stream" Duration(|t| &mut t.config.conntrack.udp_stream_timeout)
            "Time-out of UDP with replies; 0 leaves it.";
    }
    LOGGING {
        * "v" 'v' Verbosity(|t| &mut t.config.logging.verbosity)
            "How much to log: 0 is the least, 2 shows changes, 4 and more are for debugging.";
        * "vmodule" VModule(|t| &mut t.config.logging.vmodule)
            "Verbosity by source file, for the text format.";
        * "logging-format" Word(|t| &mut t.config.logging.format)
            "text or json.";
        * "log-flush-frequency" Duration(|t| t.config.logging.flush_frequency.as_text())
            "Accepted for compatibility; every line is written at once. Must be greater than 0.";
        * "log-text-split-stream" Bool(|t| &mut t.config.logging.options.text.split_stream)
            "Text format: errors to stderr, the rest to stdout. Needs the gate LoggingAlphaOptions.";
        * "log-text-info-buffer-size" Size(|t| &mut t.config.logging.options.text.info_buffer_size)
            "Accepted for compatibility with the gate LoggingAlphaOptions.";
        * "log-json-split-stream" Bool(|t| &mut t.config.logging.options.json.split_stream)
            "JSON format: errors to stderr, the rest to stdout. Needs the gate LoggingAlphaOptions.";
        * "log-json-info-buffer-size" Size(|t| &mut t.config.logging.options.json.info_buffer_size)
            "Accepted for compatibility with the gate LoggingAlphaOptions.";
    }
    "Accepted for compatibility" {
        - "boot-id-file" Text(|t| &mut t.boot_id_file)
            "Accepted and not used.";
        - "machine-id-file" Text(|t| &mut t.machine_id_file)
            "Accepted and not used.";
    }
};

/// How a command prints.
pub static OUTPUT: &[Flag] = flags! {
    "What to do" {
        * "output" 'o' Word(|t| &mut t.extra.output)
            "How to print: text or json.";
    }
};

/// Which mode a command is about.
pub static MODE: &[Flag] = flags! {
    "How traffic is carried" {
        * "mode" Word(|t| &mut t.config.mode)
            "Short for --proxy-mode.";
    }
};

/// Which packet.
pub static PACKET: &[Flag] = flags! {
    "What to do" {
        * "from" Text(|t| &mut t.extra.from)
            "Where the packet comes from: an address.";
        * "to" Text(|t| &mut t.extra.to)
            "Where it is sent: ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, the protocol being tcp, udp or sctp.";
    }
};

/// Who asks.
pub static ASKER: &[Flag] = flags! {
    "What to do" {
        * "from" Text(|t| &mut t.extra.from)
            "Who wants to reach it: an address, node or outside. If not given, whoever it is there for: pods at a cluster IP, others elsewhere.";
    }
};

/// Whether packets are watched.
pub static LIVE: &[Flag] = flags! {
    "What to do" {
        * "live" Bool(|t| &mut t.extra.live)
            "Watch packets to it, and print the way of the first ones through every nf_tables and iptables-nft table, rule by rule.";
        * "send" Bool(|t| &mut t.extra.send)
            "With --live: send one from this node, a TCP connection or a datagram.";
        * "seconds" Int32(|t| &mut t.extra.seconds)
            "With --live: how long to watch for packets of others.";
    }
};

/// Which daemon to ask.
pub static SOCKET: &[Flag] = flags! {
    "What to do" {
        * "socket" Path(|t| &mut t.config.ferry.status_socket)
            "The daemon's --status-socket.";
    }
};

/// What of a plan to print.
pub static RULES: &[Flag] = flags! {
    "What to do" {
        * "rules" Bool(|t| &mut t.extra.rules)
            "Print what the mode would write, in the kernel's own language.";
    }
};

/// How far back.
pub static SINCE: &[Flag] = flags! {
    "What to do" {
        * "since" Duration(|t| &mut t.extra.since)
            "Only what happened in this time up to now, such as 10m.";
    }
};

/// Whether to go on showing.
pub static WATCH: &[Flag] = flags! {
    "What to do" {
        * "watch" Bool(|t| &mut t.extra.watch)
            "Go on, and show what changes.";
    }
};

/// What was gathered on another node.
pub static BUNDLE: &[Flag] = flags! {
    "What to do" {
        * "bundle" Path(|t| &mut t.extra.bundle)
            "Read what 'ferry bundle' gathered on another node, in place of asking a daemon.";
    }
};

/// Where to write.
pub static FILE: &[Flag] = flags! {
    "What to do" {
        * "file" 'f' Path(|t| &mut t.extra.file)
            "The file to write; it must not be there. By default ferry-bundle-TIME.tar here.";
    }
};

/// Where pages are served.
pub static LISTEN: &[Flag] = flags! {
    "What to do" {
        * "listen" HostPort(|t| &mut t.extra.listen)
            "Where to serve the pages; port 0 lets the system choose.";
        * "allow-remote" Bool(|t| &mut t.extra.allow_remote)
            "Serve others than this machine too. There is no login: whoever reaches the address reads every service.";
    }
};

/// What to compare with.
pub static OTHER: &[Flag] = flags! {
    "What to do" {
        * "mode" Word(|t| &mut t.extra.other_mode)
            "Compare with this mode.";
        * "config" Path(|t| &mut t.extra.other_config)
            "Compare with this configuration file.";
        * "binary" Path(|t| &mut t.extra.other_binary)
            "Compare with what this other version of the program would do.";
    }
};

/// What becomes of the demo.
pub static KEEP: &[Flag] = flags! {
    "What to do" {
        * "keep" Bool(|t| &mut t.extra.keep)
            "Leave everything running at the end, to play with.";
    }
};

/// For commands that do not take the daemon's flags, which have it.
pub static HELP: &[Flag] = flags! {
    "What to do" {
        * "help" 'h' Help(|t| &mut t.help)
            "Show this text.";
    }
};
