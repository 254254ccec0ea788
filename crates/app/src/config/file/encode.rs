//! From a [`Config`] back to the file's form: for `--write-config-to` and `/configz`.

use super::{API_VERSION, KIND};
use crate::config::values::{GoDuration, format_f32};
use crate::config::written::{Config, Ferry, FormatOptions, Logging};
use crate::config::yaml::{Tree, json, yaml};

/// The configuration as a file, keys sorted.
pub fn to_yaml(config: &Config) -> String {
    yaml(&Tree::Map(versioned(config)))
}

/// The body of `/configz`.
pub fn configz(config: &Config) -> String {
    json(&Tree::Map(vec![(
        "kubeproxy.config.k8s.io",
        Tree::Map(versioned(config)),
    )]))
}

fn versioned(config: &Config) -> Vec<(&'static str, Tree)> {
    let mut fields = vec![("kind", KIND.into()), ("apiVersion", API_VERSION.into())];
    fields.extend(tree(config));
    fields
}

type Fields = Vec<(&'static str, Tree)>;

/// Every field in the order of kube-proxy's type.
fn tree(config: &Config) -> Fields {
    let mut fields: Fields = Vec::new();
    if !config.feature_gates.is_empty() {
        let gates = config
            .feature_gates
            .iter()
            .map(|(name, &on)| (name.clone(), on.into()))
            .collect();
        fields.push(("featureGates", Tree::Names(gates)));
    }
    fields.extend([
        ("clientConnection", client(config)),
        ("logging", logging(&config.logging)),
        ("hostnameOverride", (&config.hostname_override).into()),
        ("bindAddress", (&config.bind_address).into()),
        ("healthzBindAddress", (&config.healthz_bind_address).into()),
        ("metricsBindAddress", (&config.metrics_bind_address).into()),
        ("bindAddressHardFail", config.bind_address_hard_fail.into()),
        ("enableProfiling", config.enable_profiling.into()),
        (
            "showHiddenMetricsForVersion",
            (&config.show_hidden_metrics_for_version).into(),
        ),
        ("mode", config.mode.as_str().into()),
        ("iptables", iptables(config)),
        ("ipvs", ipvs(config)),
        ("nftables", nftables(config)),
        ("winkernel", winkernel(config)),
        ("detectLocalMode", config.detect_local_mode.as_str().into()),
        (
            "detectLocal",
            Tree::Map(vec![
                ("bridgeInterface", (&config.detect_local.bridge_interface).into()),
                (
                    "interfaceNamePrefix",
                    (&config.detect_local.interface_name_prefix).into(),
                ),
            ]),
        ),
        (
            "clusterCIDR",
            (&config.detect_local.cluster_cidrs.join(",")).into(),
        ),
        ("nodePortAddresses", texts(config.node_port_addresses.as_deref())),
        ("oomScoreAdj", config.oom_score_adj.into()),
        ("conntrack", conntrack(config)),
        ("configSyncPeriod", duration(config.config_sync_period)),
        ("portRange", "".into()),
    ]);
    if config.windows_run_as_service {
        fields.push(("windowsRunAsService", true.into()));
    }
    if config.ferry != Ferry::default() {
        fields.push(("ferry", ferry(&config.ferry)));
    }
    fields
}

fn duration(value: GoDuration) -> Tree {
    Tree::Text(value.to_string())
}

fn texts(values: Option<&[String]>) -> Tree {
    values.map_or(Tree::Null, |values| {
        Tree::List(values.iter().map(Tree::from).collect())
    })
}

fn client(config: &Config) -> Tree {
    let client = &config.client;
    Tree::Map(vec![
        ("kubeconfig", (&client.kubeconfig).into()),
        ("acceptContentTypes", (&client.accept_content_types).into()),
        ("contentType", (&client.content_type).into()),
        ("qps", Tree::Number(format_f32(client.qps))),
        ("burst", client.burst.into()),
    ])
}

fn logging(logging: &Logging) -> Tree {
    let flush = if logging.flush_frequency_is_number {
        Tree::Number(logging.flush_frequency.nanos().to_string())
    } else {
        duration(logging.flush_frequency)
    };
    let mut fields = vec![
        ("format", Tree::from(&logging.format)),
        ("flushFrequency", flush),
        ("verbosity", Tree::Number(logging.verbosity.to_string())),
    ];
    if !logging.vmodule.is_empty() {
        let items = logging.vmodule.iter().map(|item| {
            Tree::Map(vec![
                ("filePattern", (&item.pattern).into()),
                ("verbosity", Tree::Number(item.verbosity.to_string())),
            ])
        });
        fields.push(("vmodule", Tree::List(items.collect())));
    }
    let options = |options: &FormatOptions| {
        let mut fields = Vec::new();
        if options.split_stream {
            fields.push(("splitStream", true.into()));
        }
        fields.push(("infoBufferSize", Tree::Text(options.info_buffer_size.to_string())));
        Tree::Map(fields)
    };
    fields.push((
        "options",
        Tree::Map(vec![
            ("text", options(&logging.text)),
            ("json", options(&logging.json)),
        ]),
    ));
    Tree::Map(fields)
}

/// Whose section the one sync period belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Iptables,
    Ipvs,
    Nftables,
}

fn active(config: &Config) -> Section {
    match config.mode.as_str() {
        "ipvs" => Section::Ipvs,
        "nftables" => Section::Nftables,
        _ => Section::Iptables,
    }
}

fn pace(config: &Config, section: Section) -> [(&'static str, Tree); 2] {
    let show = |value| {
        duration(if active(config) == section {
            value
        } else {
            GoDuration::ZERO
        })
    };
    [
        ("syncPeriod", show(config.sync_period)),
        ("minSyncPeriod", show(config.min_sync_period)),
    ]
}

fn iptables(config: &Config) -> Tree {
    let mut fields = vec![
        ("masqueradeBit", config.iptables.masquerade_bit.into()),
        (
            "masqueradeAll",
            (config.masquerade_all && active(config) != Section::Nftables).into(),
        ),
        ("localhostNodePorts", config.iptables.localhost_node_ports.into()),
    ];
    fields.extend(pace(config, Section::Iptables));
    Tree::Map(fields)
}

fn ipvs(config: &Config) -> Tree {
    let ipvs = &config.ipvs;
    let mut fields = Vec::from(pace(config, Section::Ipvs));
    fields.extend([
        ("scheduler", (&ipvs.scheduler).into()),
        ("excludeCIDRs", texts(ipvs.exclude_cidrs.as_deref())),
        ("strictARP", ipvs.strict_arp.into()),
        ("tcpTimeout", duration(ipvs.tcp_timeout)),
        ("tcpFinTimeout", duration(ipvs.tcp_fin_timeout)),
        ("udpTimeout", duration(ipvs.udp_timeout)),
    ]);
    Tree::Map(fields)
}

fn nftables(config: &Config) -> Tree {
    let mut fields = vec![
        ("masqueradeBit", config.nftables.masquerade_bit.into()),
        (
            "masqueradeAll",
            (config.masquerade_all && active(config) == Section::Nftables).into(),
        ),
    ];
    fields.extend(pace(config, Section::Nftables));
    Tree::Map(fields)
}

fn winkernel(config: &Config) -> Tree {
    let winkernel = &config.winkernel;
    Tree::Map(vec![
        ("networkName", (&winkernel.network_name).into()),
        ("sourceVip", (&winkernel.source_vip).into()),
        ("enableDSR", winkernel.enable_dsr.into()),
        ("rootHnsEndpointName", (&winkernel.root_hns_endpoint_name).into()),
        ("forwardHealthCheckVip", winkernel.forward_health_check_vip.into()),
    ])
}

fn conntrack(config: &Config) -> Tree {
    let conntrack = &config.conntrack;
    Tree::Map(vec![
        ("maxPerCore", conntrack.max_per_core.into()),
        ("min", conntrack.min.into()),
        (
            "tcpEstablishedTimeout",
            duration(conntrack.tcp_established_timeout),
        ),
        ("tcpCloseWaitTimeout", duration(conntrack.tcp_close_wait_timeout)),
        ("tcpBeLiberal", conntrack.tcp_be_liberal.into()),
        ("udpTimeout", duration(conntrack.udp_timeout)),
        ("udpStreamTimeout", duration(conntrack.udp_stream_timeout)),
    ])
}

fn ferry(ferry: &Ferry) -> Tree {
    Tree::Map(vec![
        ("manifests", (&ferry.manifests).into()),
        ("statusSocket", (&ferry.status_socket).into()),
        ("trafficCounters", ferry.traffic_counters.into()),
        (
            "nftables",
            Tree::Map(vec![(
                "localhostNodePorts",
                ferry.nftables_localhost_node_ports.into(),
            )]),
        ),
        (
            "userspace",
            Tree::Map(vec![
                ("bind", ferry.userspace_bind.into()),
                ("portRange", (&ferry.proxy_port_range).into()),
                ("udpTimeout", duration(ferry.udp_timeout)),
            ]),
        ),
    ])
}
