//! From a [`Config`] to [`Settings`] in one pass: each text becomes a typed value or a fault with its path, by
//! kube-proxy's rules, with its messages and in its order. All faults are told at once.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_backends::Likeness;
use ferry_sources::kube::Encoding;
use ipnet::IpNet;

use super::settings::{
    ApiClient, Conntrack, DetectLocal, Iptables, Ipvs, Nftables, NodePortAddresses, PortRange, Settings,
    Source, Userspace,
};
use super::values::{GoDuration, Named as _, Word, aggregate, parse_cidr, parse_ip, quote, split_host_port};
use super::written::{Client, Config, DetectLocalMode, Section, TextOptions, VModule};
use super::{Completed, Error, file, yaml};
use crate::cli::flags::{self, Typed};
use crate::gates::Gates;
use crate::logging::{Format, Logging, Pattern};
use crate::modes::Mode;

/// The minor version before ours, whose hidden metrics may still be asked for.
const PREVIOUS_MINOR: &str = "1.35";
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";

/// What was found wrong, as messages. A value that is refused is replaced by any other: without faults there is none,
/// and with faults there are no settings.
#[derive(Debug, Default)]
struct Faults(Vec<String>);

impl Faults {
    fn invalid(&mut self, path: &str, value: impl Display, detail: &str) {
        self.0.push(format!("{path}: Invalid value: {value}: {detail}"));
    }

    fn forbidden(&mut self, path: &str, detail: &str) {
        self.0.push(format!("{path}: Forbidden: {detail}"));
    }

    fn check(&mut self, holds: bool, field: &str, value: impl Display, detail: &str) {
        if !holds {
            self.invalid(&at(field), value, detail);
        }
    }

    /// Judges a section; what is wrong with it matters in its mode only.
    fn section<T>(&mut self, config: &Config, section: Section, judge: fn(&Config, &mut Self) -> T) -> T {
        let before = self.0.len();
        let value = judge(config, self);
        if config.section() != section {
            self.0.truncate(before);
        }
        value
    }

    fn within(&mut self, field: &str, number: i32, range: RangeInclusive<i32>) -> i32 {
        let detail = format!("must be within the range [{}, {}]", range.start(), range.end());
        self.check(range.contains(&number), field, number, &detail);
        number
    }

    fn mark_bit(&mut self, field: &str, bit: i32) -> u8 {
        u8::try_from(self.within(field, bit, 0..=31)).unwrap_or_default()
    }

    fn not_negative(&mut self, field: &str, number: i32) -> u32 {
        self.check(number >= 0, field, number, NOT_NEGATIVE);
        number.unsigned_abs()
    }

    fn duration(&mut self, field: &str, value: GoDuration) -> Duration {
        self.check(value >= GoDuration::ZERO, field, show(value), NOT_NEGATIVE);
        value.to_std()
    }

    fn positive(&mut self, field: &str, value: GoDuration) -> Duration {
        self.check(value > GoDuration::ZERO, field, show(value), POSITIVE);
        value.to_std()
    }

    fn cidrs<'a>(&mut self, field: &str, texts: impl IntoIterator<Item = &'a String>) -> Vec<IpNet> {
        let mut cidrs = Vec::new();
        for (i, text) in texts.into_iter().enumerate() {
            match parse_cidr(text) {
                Some(cidr) => cidrs.push(cidr),
                None => self.invalid(&at(&format!("{field}[{i}]")), quote(text), "must be a valid CIDR"),
            }
        }
        cidrs
    }

    /// An empty address switches the server off.
    fn server(&mut self, field: &str, address: &str) -> Option<SocketAddr> {
        if address.is_empty() {
            return None;
        }
        let Ok((host, port)) = split_host_port(address) else {
            self.invalid(&at(field), quote(address), "must be IP:port");
            return None;
        };
        let ip = parse_ip(host);
        self.check(ip.is_some(), field, quote(host), "must be a valid IP");
        let number = port.parse().ok().filter(|port| *port > 0);
        self.check(number.is_some(), field, quote(port), "must be a valid port");
        Some(SocketAddr::new(ip?, number?))
    }
}

fn at(field: &str) -> String {
    format!("KubeProxyConfiguration.{field}")
}

/// A duration as messages show it.
fn show(value: GoDuration) -> String {
    quote(&value.to_string())
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

impl Completed {
    /// How to log, if the `logging` section makes sense.
    pub fn logging(&self) -> Result<Logging, Error> {
        let logging = &self.config.logging;
        let mut faults = Faults::default();
        let flush = logging.flush_frequency.duration;
        if flush <= GoDuration::ZERO {
            faults.invalid("logging.flushFrequency", show(flush), "Must be greater than zero");
        }
        let format = log_format(&self.config, &self.gates, &mut faults);
        let verbosity = verbosity("logging.verbosity", logging.verbosity, &mut faults);
        if !logging.vmodule.is_empty() && logging.format.as_str() != Format::Text.name() {
            faults.forbidden("logging.vmodule", "Only supported for text log format");
        }
        let items = logging.vmodule.iter().enumerate();
        let patterns = items.map(|(i, item)| pattern(i, item, &mut faults)).collect();
        let text = split_stream("text", &logging.options.text, &self.gates, &mut faults);
        let json = split_stream("json", &logging.options.json, &self.gates, &mut faults);
        aggregate(&faults.0).map_err(Error::Logging)?;
        Ok(Logging {
            format,
            verbosity,
            patterns,
            split_stream: match format {
                Format::Text => text,
                Format::Json => json,
            },
        })
    }

    /// The settings, if the whole configuration is valid. Fields are in the order in which kube-proxy judges them.
    pub fn validate(self, typed: Arc<Typed>) -> Result<Settings, Error> {
        let logging = self.logging()?;
        let config = &self.config;
        let mut faults = Faults::default();
        let f = &mut faults;
        let settings = Settings {
            iptables: iptables(config, f),
            nftables: f.section(config, Section::Nftables, nftables),
            ipvs: f.section(config, Section::Ipvs, ipvs),
            conntrack: conntrack(config, f),
            oom_score_adj: f.within(
                "KubeProxyLinuxConfiguration.OOMScoreAdj",
                config.oom_score_adj,
                -1000..=1000,
            ),
            mode: mode(config, f),
            source: source(config, &typed, f),
            hostname_override: host_name(config, f),
            sync_period: sync_period(config, f),
            min_sync_period: min_sync_period(config, f),
            bind_address: bind_address(config, f),
            healthz_bind_address: f.server("HealthzBindAddress", &config.healthz_bind_address),
            metrics_bind_address: f.server("MetricsBindAddress", &config.metrics_bind_address),
            node_port_addresses: node_port_addresses(config, f),
            detect_local: {
                check_hidden_metrics(config, f);
                detect_local(config, f)
            },
            userspace: f.section(config, Section::Userspace, userspace),
            bind_address_hard_fail: config.bind_address_hard_fail,
            profiling: config.enable_profiling,
            masquerade_all: config.pace().masquerade_all,
            logging,
            status_socket: non_empty(&config.ferry.status_socket).map(PathBuf::from),
            likeness: likeness(config),
            hold_node_ports: config.ferry.hold_node_ports,
            traffic_counters: config.ferry.traffic_counters,
            reported_version: crate::cli::reported_version(&typed.version).to_owned(),
            winkernel_source_vip: parse_ip(&config.winkernel.source_vip),
            config_file: non_empty(&typed.config_file).map(PathBuf::from),
            configz: file::configz(config),
            flagz: flags::values(&typed),
            gates: self.gates,
            typed,
        };
        aggregate(&faults.0).map_err(Error::Validate)?;
        Ok(settings)
    }
}

fn log_format(config: &Config, gates: &Gates, f: &mut Faults) -> Format {
    let written = &config.logging.format;
    let format = written.known();
    if format.is_none() {
        f.invalid(
            "logging.format",
            quote(written.as_str()),
            "Unsupported log format",
        );
    }
    if format == Some(Format::Json) && !gates.enabled("LoggingBetaOptions") {
        let detail = "Log format json is disabled, see LoggingBetaOptions feature";
        f.forbidden("logging.format", detail);
    }
    format.unwrap_or(Format::Text)
}

fn likeness(config: &Config) -> Likeness {
    if config.ferry.kube_proxy_rules {
        Likeness::Rules
    } else {
        Likeness::Outcomes
    }
}

fn verbosity(path: &str, level: u32, f: &mut Faults) -> u32 {
    if level > i32::MAX as u32 {
        f.invalid(path, level, "Must be <= 2147483647");
    }
    level
}

fn pattern(i: usize, item: &VModule, f: &mut Faults) -> Pattern {
    let path = format!("logging.vmodule[{i}]");
    if item.pattern.is_empty() {
        f.0.push(format!("{path}: Required value: File pattern must not be empty"));
    }
    if item.pattern.contains(['=', ',']) {
        let detail = "File pattern must not contain equal sign or comma";
        f.invalid(&path, quote(&item.pattern), detail);
    }
    Pattern::new(&item.pattern, verbosity(&path, item.verbosity, f))
}

fn split_stream(name: &str, options: &TextOptions, gates: &Gates, f: &mut Faults) -> bool {
    const DISABLED: &str = "Feature LoggingAlphaOptions is disabled";
    let enabled = gates.enabled("LoggingAlphaOptions");
    if options.split_stream && !enabled {
        f.forbidden(&format!("logging.options.{name}.splitStream"), DISABLED);
    }
    if !options.info_buffer_size.is_zero() && !enabled {
        f.forbidden(&format!("logging.options.{name}.infoBufferSize"), DISABLED);
    }
    options.split_stream
}

/// Always judged, whatever the mode.
fn iptables(config: &Config, f: &mut Faults) -> Iptables {
    let bit = config.iptables.masquerade_bit;
    Iptables {
        masquerade_bit: f.mark_bit("KubeProxyIPTablesConfiguration.MasqueradeBit", bit),
        localhost_node_ports: config.iptables.localhost_node_ports,
    }
}

fn nftables(config: &Config, f: &mut Faults) -> Nftables {
    let bit = config.nftables.masquerade_bit;
    Nftables {
        masquerade_bit: f.mark_bit("KubeProxyNFTablesConfiguration.MasqueradeBit", bit),
        localhost_node_ports: config.ferry.nftables.localhost_node_ports,
        fast_path: config.ferry.nftables.fast_path,
    }
}

fn ipvs(config: &Config, f: &mut Faults) -> Ipvs {
    let ipvs = &config.ipvs;
    Ipvs {
        scheduler: non_empty(&ipvs.scheduler).unwrap_or("rr").to_owned(),
        strict_arp: ipvs.strict_arp,
        tcp_timeout: f.duration("KubeProxyIPVSConfiguration.TCPTimeout", ipvs.tcp_timeout),
        tcp_fin_timeout: f.duration("KubeProxyIPVSConfiguration.TCPFinTimeout", ipvs.tcp_fin_timeout),
        udp_timeout: f.duration("KubeProxyIPVSConfiguration.UDPTimeout", ipvs.udp_timeout),
        exclude_cidrs: f.cidrs(
            "KubeProxyIPVSConfiguration.ExcludeCidrs",
            ipvs.exclude_cidrs.iter().flatten(),
        ),
    }
}

fn conntrack(config: &Config, f: &mut Faults) -> Conntrack {
    let conntrack = &config.conntrack;
    let path = |field: &str| format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
    Conntrack {
        max_per_core: f.not_negative(&path("MaxPerCore"), conntrack.max_per_core),
        min: f.not_negative(&path("Min"), conntrack.min),
        tcp_established_timeout: f
            .duration(&path("TCPEstablishedTimeout"), conntrack.tcp_established_timeout),
        tcp_close_wait_timeout: f.duration(&path("TCPCloseWaitTimeout"), conntrack.tcp_close_wait_timeout),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: f.duration(&path("UDPTimeout"), conntrack.udp_timeout),
        udp_stream_timeout: f.duration(&path("UDPStreamTimeout"), conntrack.udp_stream_timeout),
    }
}

fn mode(config: &Config, f: &mut Faults) -> Mode {
    let detail = format!(
        "must be {} or blank (blank means the best-available proxy [currently iptables])",
        Word::<Mode>::names().join(", ")
    );
    let mode = config.mode.known();
    let written = quote(config.mode.as_str());
    f.check(mode.is_some(), "Mode.ProxyMode", written, &detail);
    mode.unwrap_or(Mode::ALL[0])
}

/// Manifests win: they are asked for by name, a kubeconfig may just be part of a shared file.
fn source(config: &Config, typed: &Typed, f: &mut Faults) -> Source {
    let client = &config.client;
    f.check(
        client.qps.is_finite(),
        "ClientConnection.QPS",
        client.qps,
        "must be a number",
    );
    let burst = f.not_negative("ClientConnection.Burst", client.burst);
    if let Some(dir) = non_empty(&config.ferry.manifests) {
        return Source::Manifests(dir.into());
    }
    Source::Api(ApiClient {
        kubeconfig: non_empty(&client.kubeconfig).map(PathBuf::from),
        master: non_empty(&typed.master).map(str::to_owned),
        qps: (client.qps >= 0.0).then_some(client.qps),
        burst,
        encoding: encoding(client),
    })
}

/// As in client-go: what is accepted is what is sent, where nothing else is said.
fn encoding(client: &Client) -> Encoding {
    let accepted = non_empty(&client.accept_content_types).unwrap_or(&client.content_type);
    if accepted.contains("application/vnd.kubernetes.protobuf") {
        Encoding::Protobuf
    } else {
        Encoding::Json
    }
}

fn host_name(config: &Config, f: &mut Faults) -> Option<String> {
    let written = config.hostname_override.as_str();
    let name = non_empty(written.trim());
    let field = "HostnameOverride";
    f.check(
        written.is_empty() || name.is_some(),
        field,
        quote(written),
        "must not be blank",
    );
    name.map(str::to_lowercase)
}

fn sync_period(config: &Config, f: &mut Faults) -> Duration {
    f.positive("ConfigSyncPeriod", config.config_sync_period);
    f.positive("SyncPeriod", config.pace().sync_period)
}

fn min_sync_period(config: &Config, f: &mut Faults) -> Duration {
    let pace = config.pace();
    let period = f.duration("MinSyncPeriod", pace.min_sync_period);
    let detail = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
    let in_order = pace.min_sync_period <= pace.sync_period;
    f.check(in_order, "SyncPeriod", show(pace.min_sync_period), detail);
    period
}

fn bind_address(config: &Config, f: &mut Faults) -> IpAddr {
    let written = &config.bind_address;
    let address = parse_ip(written);
    let detail = "not a valid textual representation of an IP address";
    f.check(address.is_some(), "BindAddress", quote(written), detail);
    address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

fn node_port_addresses(config: &Config, f: &mut Faults) -> NodePortAddresses {
    const PRIMARY: &str = "primary";
    let addresses = config.node_port_addresses.as_deref().unwrap_or_default();
    let primary = addresses.iter().position(|address| address == PRIMARY);
    // What stands behind `primary` is not looked at.
    let cidrs = f.cidrs(
        "NodePortAddresses",
        &addresses[..primary.unwrap_or(addresses.len())],
    );
    match primary {
        None if addresses.is_empty() => NodePortAddresses::All,
        None => NodePortAddresses::Cidrs(cidrs),
        Some(i) => {
            f.check(
                addresses.len() == 1,
                &format!("NodePortAddresses[{i}]"),
                quote(PRIMARY),
                "can't use both 'primary' and CIDRs",
            );
            NodePortAddresses::Primary
        }
    }
}

fn check_hidden_metrics(config: &Config, f: &mut Faults) {
    let version = &config.show_hidden_metrics_for_version;
    let value = quote(version);
    let detail = format!(
        "invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: {value}: must be \
         omitted or have the value '{PREVIOUS_MINOR}'; only the previous minor version is allowed"
    );
    let allowed = version.is_empty() || version == PREVIOUS_MINOR;
    f.check(allowed, "ShowHiddenMetricsForVersion", value, &detail);
}

fn detect_local(config: &Config, f: &mut Faults) -> DetectLocal {
    let name = |field: &str, value: &String, f: &mut Faults| {
        let field = format!("DetectLocalConfiguration.{field}");
        f.check(!value.is_empty(), &field, quote(value), "must not be empty");
        value.clone()
    };
    let local = &config.detect_local;
    match config.detect_local_mode.known() {
        Some(DetectLocalMode::NodeCidr) => DetectLocal::NodeCidr,
        Some(DetectLocalMode::BridgeInterface) => {
            DetectLocal::BridgeInterface(name("InterfaceName", &local.bridge_interface, f))
        }
        Some(DetectLocalMode::InterfaceNamePrefix) => {
            DetectLocal::InterfaceNamePrefix(name("InterfacePrefix", &local.interface_name_prefix, f))
        }
        Some(DetectLocalMode::ClusterCidr) => DetectLocal::ClusterCidr(cluster_cidrs(config, f)),
        None => {
            let names = DetectLocalMode::ALL.iter().map(|mode| quote(mode.name()));
            f.0.push(format!(
                "{}: Unsupported value: {}: supported values: {}, \"\"",
                at("DetectLocalMode"),
                quote(config.detect_local_mode.as_str()),
                names.collect::<Vec<_>>().join(", ")
            ));
            DetectLocal::NodeCidr
        }
    }
}

fn cluster_cidrs(config: &Config, f: &mut Faults) -> Vec<IpNet> {
    const FIELD: &str = "DetectLocalConfiguration.ClusterCIDRs";
    let texts = &config.cluster_cidrs;
    let parsed: Vec<_> = texts.iter().map(|text| parse_cidr(text)).collect();
    let same_family = match parsed.as_slice() {
        [Some(a), Some(b)] => a.addr().is_ipv4() == b.addr().is_ipv4(),
        _ => false,
    };
    let detail = "must be a either a single CIDR or dual-stack pair of CIDRs \
                  (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
    let one_or_pair = texts.len() <= 2 && !same_family;
    f.check(one_or_pair, FIELD, yaml::json(texts), detail);
    for (i, (text, parsed)) in texts.iter().zip(&parsed).enumerate() {
        let detail = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
        f.check(parsed.is_some(), &format!("{FIELD}[{i}]"), quote(text), detail);
    }
    parsed.into_iter().flatten().collect()
}

fn userspace(config: &Config, f: &mut Faults) -> Userspace {
    let ours = &config.ferry.userspace;
    let ports = parse_port_range(&ours.port_range);
    let detail = "must be a valid port range (e.g. 300-2000)";
    f.check(ports.is_some(), "PortRange", quote(&ours.port_range), detail);
    Userspace {
        bind: ours.bind,
        ports: ports.flatten(),
        udp_timeout: f.positive("UDPIdleTimeout", ours.udp_timeout),
    }
}

/// Reads `N`, `FIRST-LAST` or `FIRST+COUNT`; nothing or a range from 0 lets the kernel choose.
fn parse_port_range(text: &str) -> Option<Option<PortRange>> {
    let text = text.trim();
    let port = |text: &str| text.parse::<u32>().ok();
    let (first, last) = if text.is_empty() {
        (0, 0)
    } else if let Some((first, last)) = text.split_once('-') {
        (port(first)?, port(last)?)
    } else if let Some((first, more)) = text.split_once('+') {
        let first = port(first)?;
        (first, first.checked_add(port(more)?)?)
    } else {
        (port(text)?, port(text)?)
    };
    let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
    (first <= last).then_some((first > 0).then_some(PortRange { first, last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges() {
        let range = |first, last| Some(Some(PortRange { first, last }));
        for (text, expected) in [
            ("", Some(None)),
            ("0", Some(None)),
            ("0-0", Some(None)),
            ("0+100", Some(None)),
            ("8000", range(8000, 8000)),
            ("300-2000", range(300, 2000)),
            ("300+5", range(300, 305)),
            (" 7-8 ", range(7, 8)),
            ("65535", range(65535, 65535)),
            ("65535+1", None),
            ("65536", None),
            ("9-8", None),
            ("x", None),
            ("1-", None),
            ("-1", None),
            ("1+4294967295", None),
        ] {
            assert_eq!(parse_port_range(text), expected, "{text}");
        }
    }
}
