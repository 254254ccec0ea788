//! From a judged [`Config`] to [`Settings`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::settings::{
    ApiClient, Conntrack, DetectLocal, Iptables, Ipvs, Nftables, NodePortAddresses, PortRange, Settings,
    Source, Userspace,
};
use super::values::{parse_cidr, parse_ip, split_host_port};
use super::written::{Config, Ferry};
use super::{Completed, Error, file, validate};
use crate::cli::flags::{FLAGS, Typed};
use crate::logging::{Format, Logging, Pattern};
use crate::modes::Mode;

impl Completed {
    /// How to log, if the `logging` section makes sense.
    pub fn logging(&self) -> Result<Logging, Error> {
        let logging = &self.config.logging;
        validate::check_logging(logging, &self.gates)
            .into_result()
            .map_err(Error::Logging)?;
        let (format, options) = match logging.format.as_str() {
            "json" => (Format::Json, &logging.json),
            _ => (Format::Text, &logging.text),
        };
        let patterns = logging
            .vmodule
            .iter()
            .map(|item| Pattern::new(&item.pattern, item.verbosity));
        Ok(Logging {
            format,
            verbosity: logging.verbosity,
            patterns: patterns.collect(),
            split_stream: options.split_stream,
        })
    }

    /// The settings, if the whole configuration is valid.
    pub fn validate(self, typed: Arc<Typed>) -> Result<Settings, Error> {
        let logging = self.logging()?;
        validate::check(&self.config)
            .into_result()
            .map_err(Error::Validate)?;
        let config = &self.config;
        let mode = Mode::named(&config.mode).ok_or_else(|| unreachable("mode"))?;
        let flagz = FLAGS.iter().map(|flag| (flag.name, flag.show(&typed)));
        let mut flagz: Vec<_> = flagz.collect();
        flagz.sort();
        Ok(Settings {
            mode,
            source: source(config, &typed),
            hostname_override: non_empty(config.hostname_override.trim()).map(str::to_lowercase),
            sync_period: config.sync_period.to_std(),
            min_sync_period: config.min_sync_period.to_std(),
            bind_address: parse_ip(&config.bind_address).ok_or_else(|| unreachable("bindAddress"))?,
            healthz_bind_address: server_address(&config.healthz_bind_address),
            metrics_bind_address: server_address(&config.metrics_bind_address),
            bind_address_hard_fail: config.bind_address_hard_fail,
            profiling: config.enable_profiling,
            detect_local: detect_local(config),
            node_port_addresses: node_port_addresses(config),
            masquerade_all: config.masquerade_all,
            oom_score_adj: config.oom_score_adj,
            conntrack: conntrack(config),
            iptables: Iptables {
                localhost_node_ports: config.iptables.localhost_node_ports,
                masquerade_bit: masquerade_bit(config.iptables.masquerade_bit),
            },
            ipvs: ipvs(config),
            nftables: Nftables {
                masquerade_bit: masquerade_bit(config.nftables.masquerade_bit),
                localhost_node_ports: config.ferry.nftables_localhost_node_ports,
            },
            userspace: userspace(&config.ferry),
            gates: self.gates,
            logging,
            status_socket: non_empty(&config.ferry.status_socket).map(PathBuf::from),
            traffic_counters: config.ferry.traffic_counters,
            reported_version: crate::cli::reported_version(&typed.version).to_owned(),
            winkernel_source_vip: parse_ip(&config.winkernel.source_vip),
            config_file: non_empty(&typed.config_file).map(PathBuf::from),
            configz: file::configz(config),
            flagz,
            typed,
        })
    }
}

/// A value that validation has let through and that yet cannot be read.
fn unreachable(field: &str) -> Error {
    Error::Validate(format!("{field} cannot be read"))
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Manifests win: they are asked for by name, a kubeconfig may just be part of a shared file.
fn source(config: &Config, typed: &Typed) -> Source {
    if let Some(dir) = non_empty(&config.ferry.manifests) {
        return Source::Manifests(dir.into());
    }
    let client = &config.client;
    Source::Api(ApiClient {
        kubeconfig: non_empty(&client.kubeconfig).map(PathBuf::from),
        master: non_empty(&typed.master).map(str::to_owned),
        qps: (client.qps >= 0.0).then_some(client.qps),
        burst: client.burst.unsigned_abs(),
    })
}

fn server_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = split_host_port(text).ok()?;
    Some(SocketAddr::new(parse_ip(host)?, port.parse().ok()?))
}

fn detect_local(config: &Config) -> DetectLocal {
    let local = &config.detect_local;
    match config.detect_local_mode.as_str() {
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => DetectLocal::BridgeInterface(local.bridge_interface.clone()),
        "InterfaceNamePrefix" => DetectLocal::InterfaceNamePrefix(local.interface_name_prefix.clone()),
        _ => DetectLocal::ClusterCidr(cidrs(&local.cluster_cidrs)),
    }
}

fn cidrs(texts: &[String]) -> Vec<ipnet::IpNet> {
    texts.iter().filter_map(|text| parse_cidr(text)).collect()
}

fn node_port_addresses(config: &Config) -> NodePortAddresses {
    match config.node_port_addresses.as_deref() {
        None | Some([]) => NodePortAddresses::All,
        Some([one]) if one == "primary" => NodePortAddresses::Primary,
        Some(texts) => NodePortAddresses::Cidrs(cidrs(texts)),
    }
}

/// As in kube-proxy, the bit of a mode that is not in force is not checked; it is not used either.
fn masquerade_bit(bit: i32) -> u8 {
    (bit & 31) as u8
}

fn conntrack(config: &Config) -> Conntrack {
    let conntrack = &config.conntrack;
    Conntrack {
        max_per_core: conntrack.max_per_core.unsigned_abs(),
        min: conntrack.min.unsigned_abs(),
        tcp_established_timeout: conntrack.tcp_established_timeout.to_std(),
        tcp_close_wait_timeout: conntrack.tcp_close_wait_timeout.to_std(),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: conntrack.udp_timeout.to_std(),
        udp_stream_timeout: conntrack.udp_stream_timeout.to_std(),
    }
}

fn ipvs(config: &Config) -> Ipvs {
    let ipvs = &config.ipvs;
    Ipvs {
        scheduler: non_empty(&ipvs.scheduler).unwrap_or("rr").to_owned(),
        exclude_cidrs: cidrs(ipvs.exclude_cidrs.as_deref().unwrap_or_default()),
        strict_arp: ipvs.strict_arp,
        tcp_timeout: ipvs.tcp_timeout.to_std(),
        tcp_fin_timeout: ipvs.tcp_fin_timeout.to_std(),
        udp_timeout: ipvs.udp_timeout.to_std(),
    }
}

fn userspace(ferry: &Ferry) -> Userspace {
    Userspace {
        bind: ferry.userspace_bind,
        ports: parse_port_range(&ferry.proxy_port_range).unwrap_or_default(),
        udp_timeout: ferry.udp_timeout.to_std(),
    }
}

/// Reads `N`, `FIRST-LAST` or `FIRST+COUNT`; nothing or a range from 0 lets the kernel choose.
pub(super) fn parse_port_range(text: &str) -> Result<Option<PortRange>, ()> {
    let text = text.trim();
    let port = |text: &str| text.parse::<u32>().map_err(|_| ());
    let (first, last) = if text.is_empty() {
        (0, 0)
    } else if let Some((first, last)) = text.split_once('-') {
        (port(first)?, port(last)?)
    } else if let Some((first, more)) = text.split_once('+') {
        let first = port(first)?;
        (first, first.checked_add(port(more)?).ok_or(())?)
    } else {
        (port(text)?, port(text)?)
    };
    let (first, last) = (
        u16::try_from(first).map_err(|_| ())?,
        u16::try_from(last).map_err(|_| ())?,
    );
    if last < first {
        return Err(());
    }
    Ok((first > 0).then_some(PortRange { first, last }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges() {
        let range = |first, last| Ok(Some(PortRange { first, last }));
        for (text, expected) in [
            ("", Ok(None)),
            ("0", Ok(None)),
            ("0-0", Ok(None)),
            ("0+100", Ok(None)),
            ("8000", range(8000, 8000)),
            ("300-2000", range(300, 2000)),
            ("300+5", range(300, 305)),
            (" 7-8 ", range(7, 8)),
            ("65535", range(65535, 65535)),
            ("65535+1", Err(())),
            ("65536", Err(())),
            ("9-8", Err(())),
            ("x", Err(())),
            ("1-", Err(())),
            ("-1", Err(())),
            ("1+4294967295", Err(())),
        ] {
            assert_eq!(parse_port_range(text), expected, "{text}");
        }
    }
}
