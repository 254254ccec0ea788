//! Judges a [`Config`]: kube-proxy's rules with its paths and messages, in its order.

use super::values::{GoDuration, parse_cidr, parse_ip, quote, split_host_port};
use super::written::{Config, FormatOptions, Logging};
use super::yaml::{Tree, json};
use crate::gates::Gates;

/// The minor version before ours, whose hidden metrics may still be asked for.
const PREVIOUS_MINOR: &str = "1.35";

/// What was found wrong, as messages.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<String>);

impl Faults {
    fn invalid(&mut self, path: &str, value: impl std::fmt::Display, detail: &str) {
        self.0.push(format!("{path}: Invalid value: {value}: {detail}"));
    }

    fn forbidden(&mut self, path: &str, detail: &str) {
        self.0.push(format!("{path}: Forbidden: {detail}"));
    }

    /// One fault stands alone, several are a list.
    pub(super) fn into_result(self) -> Result<(), String> {
        match self.0.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}

/// Checks the `logging` section, which must be sound before anything can be said.
pub(super) fn check_logging(logging: &Logging, gates: &Gates) -> Faults {
    let mut faults = Faults::default();
    match logging.format.as_str() {
        "text" => {}
        "json" if gates.enabled("LoggingBetaOptions") => {}
        "json" => {
            faults.forbidden(
                "logging.format",
                "Log format json is disabled, see LoggingBetaOptions feature",
            );
        }
        other => faults.invalid("logging.format", quote(other), "Unsupported log format"),
    }
    if logging.flush_frequency <= GoDuration::ZERO {
        faults.invalid(
            "logging.flushFrequency",
            show(logging.flush_frequency),
            "Must be greater than zero",
        );
    }
    let too_loud = |level: u32| level > i32::MAX as u32;
    const LOUDEST: &str = "Must be <= 2147483647";
    if too_loud(logging.verbosity) {
        faults.invalid("logging.verbosity", logging.verbosity, LOUDEST);
    }
    if !logging.vmodule.is_empty() && logging.format != "text" {
        faults.forbidden("logging.vmodule", "Only supported for text log format");
    }
    for (i, item) in logging.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{i}]");
        if item.pattern.is_empty() {
            faults
                .0
                .push(format!("{path}: Required value: File pattern must not be empty"));
        }
        if item.pattern.contains(['=', ',']) {
            faults.invalid(
                &path,
                quote(&item.pattern),
                "File pattern must not contain equal sign or comma",
            );
        }
        if too_loud(item.verbosity) {
            faults.invalid(&path, item.verbosity, LOUDEST);
        }
    }
    check_format_options("text", &logging.text, gates, &mut faults);
    check_format_options("json", &logging.json, gates, &mut faults);
    faults
}

fn check_format_options(name: &str, options: &FormatOptions, gates: &Gates, faults: &mut Faults) {
    if gates.enabled("LoggingAlphaOptions") {
        return;
    }
    const DISABLED: &str = "Feature LoggingAlphaOptions is disabled";
    if options.split_stream {
        faults.forbidden(&format!("logging.options.{name}.splitStream"), DISABLED);
    }
    if !options.info_buffer_size.is_zero() {
        faults.forbidden(&format!("logging.options.{name}.infoBufferSize"), DISABLED);
    }
}

/// Checks everything else.
pub(super) fn check(config: &Config) -> Faults {
    let mut faults = Faults::default();
    let f = &mut faults;
    check_mark_bit(
        "KubeProxyIPTablesConfiguration",
        config.iptables.masquerade_bit,
        f,
    );
    if config.mode == "ipvs" {
        check_ipvs(config, f);
    }
    if config.mode == "nftables" {
        check_mark_bit(
            "KubeProxyNFTablesConfiguration",
            config.nftables.masquerade_bit,
            f,
        );
    }
    check_linux(config, f);
    check_mode(config, f);
    check_client(config, f);
    if !config.hostname_override.is_empty() && config.hostname_override.trim().is_empty() {
        f.invalid(
            &at("HostnameOverride"),
            quote(&config.hostname_override),
            "must not be blank",
        );
    }
    check_periods(config, f);
    if parse_ip(&config.bind_address).is_none() {
        let detail = "not a valid textual representation of an IP address";
        f.invalid(&at("BindAddress"), quote(&config.bind_address), detail);
    }
    check_host_port("HealthzBindAddress", &config.healthz_bind_address, f);
    check_host_port("MetricsBindAddress", &config.metrics_bind_address, f);
    check_node_port_addresses(config, f);
    check_hidden_metrics(config, f);
    check_detect_local(config, f);
    if config.mode == "userspace" {
        check_userspace(config, f);
    }
    faults
}

fn at(field: &str) -> String {
    format!("KubeProxyConfiguration.{field}")
}

/// A duration as messages show it.
fn show(value: GoDuration) -> String {
    quote(&value.to_string())
}

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

fn check_mark_bit(section: &str, bit: i32, f: &mut Faults) {
    if !(0..=31).contains(&bit) {
        f.invalid(
            &at(&format!("{section}.MasqueradeBit")),
            bit,
            "must be within the range [0, 31]",
        );
    }
}

fn check_not_negative(path: &str, value: GoDuration, f: &mut Faults) {
    if value < GoDuration::ZERO {
        f.invalid(&at(path), show(value), NOT_NEGATIVE);
    }
}

fn check_ipvs(config: &Config, f: &mut Faults) {
    let ipvs = &config.ipvs;
    check_not_negative("KubeProxyIPVSConfiguration.TCPTimeout", ipvs.tcp_timeout, f);
    check_not_negative(
        "KubeProxyIPVSConfiguration.TCPFinTimeout",
        ipvs.tcp_fin_timeout,
        f,
    );
    check_not_negative("KubeProxyIPVSConfiguration.UDPTimeout", ipvs.udp_timeout, f);
    for (i, cidr) in ipvs.exclude_cidrs.iter().flatten().enumerate() {
        if parse_cidr(cidr).is_none() {
            let path = at(&format!("KubeProxyIPVSConfiguration.ExcludeCidrs[{i}]"));
            f.invalid(&path, quote(cidr), "must be a valid CIDR");
        }
    }
}

fn check_linux(config: &Config, f: &mut Faults) {
    let conntrack = &config.conntrack;
    let path = |field: &str| format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
    for (field, value) in [("MaxPerCore", conntrack.max_per_core), ("Min", conntrack.min)] {
        if value < 0 {
            f.invalid(&at(&path(field)), value, NOT_NEGATIVE);
        }
    }
    check_not_negative(
        &path("TCPEstablishedTimeout"),
        conntrack.tcp_established_timeout,
        f,
    );
    check_not_negative(&path("TCPCloseWaitTimeout"), conntrack.tcp_close_wait_timeout, f);
    check_not_negative(&path("UDPTimeout"), conntrack.udp_timeout, f);
    check_not_negative(&path("UDPStreamTimeout"), conntrack.udp_stream_timeout, f);
    if !(-1000..=1000).contains(&config.oom_score_adj) {
        let path = at("KubeProxyLinuxConfiguration.OOMScoreAdj");
        f.invalid(
            &path,
            config.oom_score_adj,
            "must be within the range [-1000, 1000]",
        );
    }
}

fn check_mode(config: &Config, f: &mut Faults) {
    if !["iptables", "ipvs", "nftables", "userspace"].contains(&config.mode.as_str()) {
        let detail = "must be iptables, ipvs, nftables, userspace or blank \
                      (blank means the best-available proxy [currently iptables])";
        f.invalid(&at("Mode.ProxyMode"), quote(&config.mode), detail);
    }
}

fn check_client(config: &Config, f: &mut Faults) {
    if config.client.qps.is_nan() {
        f.invalid(&at("ClientConnection.QPS"), "NaN", "must be a number");
    }
    if config.client.burst < 0 {
        f.invalid(&at("ClientConnection.Burst"), config.client.burst, NOT_NEGATIVE);
    }
}

fn check_periods(config: &Config, f: &mut Faults) {
    for (field, value) in [
        ("ConfigSyncPeriod", config.config_sync_period),
        ("SyncPeriod", config.sync_period),
    ] {
        if value <= GoDuration::ZERO {
            f.invalid(&at(field), show(value), "must be greater than 0");
        }
    }
    check_not_negative("MinSyncPeriod", config.min_sync_period, f);
    if config.min_sync_period > config.sync_period {
        let detail = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        f.invalid(&at("SyncPeriod"), show(config.min_sync_period), detail);
    }
}

/// An empty address switches the server off.
fn check_host_port(field: &str, address: &str, f: &mut Faults) {
    if address.is_empty() {
        return;
    }
    let Ok((host, port)) = split_host_port(address) else {
        return f.invalid(&at(field), quote(address), "must be IP:port");
    };
    if parse_ip(host).is_none() {
        f.invalid(&at(field), quote(host), "must be a valid IP");
    }
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        f.invalid(&at(field), quote(port), "must be a valid port");
    }
}

fn check_node_port_addresses(config: &Config, f: &mut Faults) {
    let addresses = config.node_port_addresses.as_deref().unwrap_or_default();
    for (i, address) in addresses.iter().enumerate() {
        let path = at(&format!("NodePortAddresses[{i}]"));
        if address == "primary" {
            if addresses.len() > 1 {
                f.invalid(&path, quote(address), "can't use both 'primary' and CIDRs");
            }
            break;
        }
        if parse_cidr(address).is_none() {
            f.invalid(&path, quote(address), "must be a valid CIDR");
        }
    }
}

fn check_hidden_metrics(config: &Config, f: &mut Faults) {
    let version = &config.show_hidden_metrics_for_version;
    if !version.is_empty() && version != PREVIOUS_MINOR {
        let value = quote(version);
        let detail = format!(
            "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: {value}: must be \
             omitted or have the value '{PREVIOUS_MINOR}'; only the previous minor version is allowed"
        );
        f.invalid(&at("ShowHiddenMetricsForVersion"), value, &detail);
    }
}

fn check_detect_local(config: &Config, f: &mut Faults) {
    let local = &config.detect_local;
    let not_empty = |field: &str, value: &str, f: &mut Faults| {
        if value.is_empty() {
            let path = at(&format!("DetectLocalConfiguration.{field}"));
            f.invalid(&path, quote(value), "must not be empty");
        }
    };
    match config.detect_local_mode.as_str() {
        "NodeCIDR" => {}
        "BridgeInterface" => not_empty("InterfaceName", &local.bridge_interface, f),
        "InterfaceNamePrefix" => not_empty("InterfacePrefix", &local.interface_name_prefix, f),
        "ClusterCIDR" => check_cluster_cidrs(&local.cluster_cidrs, f),
        other => f.0.push(format!(
            "{}: Unsupported value: {}: supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \
             \"InterfaceNamePrefix\", \"\"",
            at("DetectLocalMode"),
            quote(other)
        )),
    }
}

fn check_cluster_cidrs(cidrs: &[String], f: &mut Faults) {
    let path = at("DetectLocalConfiguration.ClusterCIDRs");
    let parsed: Vec<_> = cidrs.iter().map(|cidr| parse_cidr(cidr)).collect();
    let same_family = |pair: &[Option<ipnet::IpNet>]| match pair {
        [Some(a), Some(b)] => a.addr().is_ipv4() == b.addr().is_ipv4(),
        _ => false,
    };
    if cidrs.len() > 2 || same_family(&parsed) {
        let value = json(&Tree::List(cidrs.iter().map(Tree::from).collect()));
        let detail = "must be a either a single CIDR or dual-stack pair of CIDRs \
                      (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
        f.invalid(&path, value, detail);
    }
    for (i, (cidr, parsed)) in cidrs.iter().zip(&parsed).enumerate() {
        if parsed.is_none() {
            let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
            f.invalid(&format!("{path}[{i}]"), quote(cidr), detail);
        }
    }
}

fn check_userspace(config: &Config, f: &mut Faults) {
    let ferry = &config.ferry;
    if super::build::parse_port_range(&ferry.proxy_port_range).is_err() {
        let detail = "must be a valid port range (e.g. 300-2000)";
        f.invalid(&at("PortRange"), quote(&ferry.proxy_port_range), detail);
    }
    if ferry.udp_timeout <= GoDuration::ZERO {
        f.invalid(
            &at("UDPIdleTimeout"),
            show(ferry.udp_timeout),
            "must be greater than 0",
        );
    }
}
