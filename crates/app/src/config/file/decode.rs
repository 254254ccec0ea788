//! From the text of a file to a [`Config`] with every default filled in.

use std::cell::RefCell;

use super::object::{Findings, Object};
use super::{API_VERSION, DecodeError, KIND};
use crate::config::values::{GoDuration, append_port, parse_ip, quote};
use crate::config::written::{self, Config, HEALTHZ_PORT, METRICS_PORT};
use crate::config::yaml::{self, Value};

/// A usable file.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub config: Config,
    /// Why a strict reader would refuse the file (unknown or repeated fields), with the lines.
    pub strict_error: Option<(String, Vec<usize>)>,
}

/// Reads the first document of a file, as if it named another mode if one is given.
pub fn decode(text: &str, mode: Option<&str>) -> Result<Decoded, DecodeError> {
    let document = yaml::read_first(text).map_err(|error| DecodeError::whole(error.to_string()))?;
    let missing =
        |what: &str| DecodeError::whole(format!("Object '{what}' is missing in '{}'", shortened(text)));
    let entries = match &document.root.value {
        Value::Map(entries) => entries,
        Value::Null => return Err(missing("Kind")),
        _ => {
            return Err(DecodeError::whole(
                "couldn't get version/kind; json parse error: the document is not an object",
            ));
        }
    };
    let findings = RefCell::new(Findings::default());
    let mut root = Object::new(entries, KIND, &findings);
    let (mut kind, mut api_version) = (String::new(), String::new());
    root.string("kind", &mut kind);
    root.string("apiVersion", &mut api_version);
    if let Some(fatal) = findings.borrow_mut().fatal.take() {
        return Err(fatal);
    }
    if kind.is_empty() {
        return Err(missing("Kind"));
    }
    if api_version.is_empty() {
        return Err(missing("apiVersion"));
    }
    if kind != KIND || api_version != API_VERSION {
        return Err(DecodeError::whole(format!(
            "no kind {} is registered for version {} in scheme \"ferry\"",
            quote(&kind),
            quote(&api_version)
        )));
    }
    let config = read_config(&mut root, mode);
    root.finish();
    let Findings { fatal, unknown } = findings.into_inner();
    if let Some(fatal) = fatal {
        return Err(fatal);
    }
    let is_json = text.trim_start().starts_with('{');
    Ok(Decoded {
        config,
        strict_error: strict_error(&document.duplicates, unknown, is_json),
    })
}

/// What a strict reader says about repeated and unknown fields.
fn strict_error(
    duplicates: &[(String, usize)],
    mut unknown: Vec<(String, usize)>,
    is_json: bool,
) -> Option<(String, Vec<usize>)> {
    let mut reasons = Vec::new();
    if is_json {
        reasons.extend(
            duplicates
                .iter()
                .map(|(key, _)| format!("duplicate field {}", quote(key))),
        );
    } else if !duplicates.is_empty() {
        let mut text = "yaml: unmarshal errors:".to_owned();
        for (key, line) in duplicates {
            text.push_str(&format!("\n  line {line}: key {} already set in map", quote(key)));
        }
        reasons.push(text);
    }
    unknown.sort();
    reasons.extend(
        unknown
            .iter()
            .map(|(path, _)| format!("unknown field {}", quote(path))),
    );
    if reasons.is_empty() {
        return None;
    }
    let lines = duplicates.iter().chain(&unknown).map(|(_, line)| *line).collect();
    Some((format!("strict decoding error: {}", reasons.join(", ")), lines))
}

/// Enough of a file to recognise it in a message.
fn shortened(text: &str) -> String {
    const LIMIT: usize = 400;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// What each mode's section says; one of them becomes the configuration's.
#[derive(Default)]
struct Pace {
    sync_period: GoDuration,
    min_sync_period: GoDuration,
    masquerade_all: bool,
}

impl Pace {
    fn read(&mut self, section: &mut Object<'_>) {
        section.duration("syncPeriod", &mut self.sync_period);
        section.duration("minSyncPeriod", &mut self.min_sync_period);
    }

    /// Zero means the default, which is not the same for every mode.
    fn or_default(self, min: GoDuration) -> Self {
        let default = |value: GoDuration, default| if value.is_zero() { default } else { value };
        Self {
            sync_period: default(self.sync_period, GoDuration::from_secs(30)),
            min_sync_period: default(self.min_sync_period, min),
            masquerade_all: self.masquerade_all,
        }
    }
}

fn read_config(root: &mut Object<'_>, mode: Option<&str>) -> Config {
    let mut config = Config::default();
    root.booleans("featureGates", &mut config.feature_gates);
    read_client(root, &mut config.client);
    read_logging(root, &mut config.logging);
    root.string("hostnameOverride", &mut config.hostname_override);
    read_addresses(root, &mut config);
    root.boolean("bindAddressHardFail", &mut config.bind_address_hard_fail);
    root.boolean("enableProfiling", &mut config.enable_profiling);
    root.string(
        "showHiddenMetricsForVersion",
        &mut config.show_hidden_metrics_for_version,
    );
    root.string("mode", &mut config.mode);
    if let Some(mode) = mode {
        mode.clone_into(&mut config.mode);
    }
    read_modes(root, &mut config);
    read_winkernel(root, &mut config.winkernel);
    root.string("detectLocalMode", &mut config.detect_local_mode);
    root.object("detectLocal", "DetectLocalConfiguration", |o| {
        o.string("bridgeInterface", &mut config.detect_local.bridge_interface);
        o.string(
            "interfaceNamePrefix",
            &mut config.detect_local.interface_name_prefix,
        );
    });
    let mut cluster_cidr = String::new();
    root.string("clusterCIDR", &mut cluster_cidr);
    if !cluster_cidr.is_empty() {
        config.detect_local.cluster_cidrs = cluster_cidr.split(',').map(str::to_owned).collect();
    }
    root.strings("nodePortAddresses", &mut config.node_port_addresses);
    root.int32("oomScoreAdj", &mut config.oom_score_adj);
    read_conntrack(root, &mut config.conntrack);
    let mut period = GoDuration::ZERO;
    root.duration("configSyncPeriod", &mut period);
    if !period.is_zero() {
        config.config_sync_period = period;
    }
    root.boolean("windowsRunAsService", &mut config.windows_run_as_service);
    read_ferry(root, &mut config);
    config
}

fn read_client(root: &mut Object<'_>, client: &mut written::Client) {
    let defaults = client.clone();
    (client.qps, client.burst) = (0.0, 0);
    client.content_type.clear();
    root.object("clientConnection", "ClientConnectionConfiguration", |o| {
        o.string("kubeconfig", &mut client.kubeconfig);
        o.string("acceptContentTypes", &mut client.accept_content_types);
        o.string("contentType", &mut client.content_type);
        o.float32("qps", &mut client.qps);
        o.int32("burst", &mut client.burst);
    });
    if client.content_type.is_empty() {
        client.content_type = defaults.content_type;
    }
    if client.qps == 0.0 {
        client.qps = defaults.qps;
    }
    if client.burst == 0 {
        client.burst = defaults.burst;
    }
}

fn read_logging(root: &mut Object<'_>, logging: &mut written::Logging) {
    let defaults = logging.clone();
    logging.format.clear();
    logging.flush_frequency = GoDuration::ZERO;
    let mut vmodule = Vec::new();
    root.object("logging", "LoggingConfiguration", |o| {
        o.string("format", &mut logging.format);
        logging.flush_frequency_is_number =
            o.duration_or_nanos("flushFrequency", &mut logging.flush_frequency);
        o.verbosity("verbosity", &mut logging.verbosity);
        o.objects("vmodule", "VModuleItem", |item| {
            let mut entry = written::VModule {
                pattern: String::new(),
                verbosity: 0,
            };
            item.string("filePattern", &mut entry.pattern);
            item.verbosity("verbosity", &mut entry.verbosity);
            vmodule.push(entry);
        });
        o.object("options", "FormatOptions", |options| {
            options.object("text", "TextOptions", |o| read_format(o, &mut logging.text));
            options.object("json", "JSONOptions", |o| read_format(o, &mut logging.json));
        });
    });
    logging.vmodule = vmodule;
    if logging.format.is_empty() {
        logging.format = defaults.format;
    }
    if logging.flush_frequency.is_zero() {
        logging.flush_frequency = defaults.flush_frequency;
        logging.flush_frequency_is_number = false;
    }
}

fn read_format(section: &mut Object<'_>, options: &mut written::FormatOptions) {
    section.boolean("splitStream", &mut options.split_stream);
    section.quantity("infoBufferSize", &mut options.info_buffer_size);
}

/// The servers follow the family of the bind address unless they say otherwise.
fn read_addresses(root: &mut Object<'_>, config: &mut Config) {
    let (mut bind, mut healthz, mut metrics) = (String::new(), String::new(), String::new());
    root.string("bindAddress", &mut bind);
    root.string("healthzBindAddress", &mut healthz);
    root.string("metricsBindAddress", &mut metrics);
    if !bind.is_empty() {
        config.bind_address = bind;
    }
    let is_v4 = parse_ip(&config.bind_address).is_some_and(|ip| ip.is_ipv4());
    let (any, local) = if is_v4 {
        ("0.0.0.0", "127.0.0.1")
    } else {
        ("::", "::1")
    };
    let or_default = |address: String, default: &str| {
        if address.is_empty() {
            default.to_owned()
        } else {
            address
        }
    };
    config.healthz_bind_address = append_port(&or_default(healthz, any), HEALTHZ_PORT);
    config.metrics_bind_address = append_port(&or_default(metrics, local), METRICS_PORT);
}

fn read_modes(root: &mut Object<'_>, config: &mut Config) {
    let (mut iptables, mut ipvs, mut nftables) = (Pace::default(), Pace::default(), Pace::default());
    root.object("iptables", "KubeProxyIPTablesConfiguration", |o| {
        o.int32("masqueradeBit", &mut config.iptables.masquerade_bit);
        o.boolean("masqueradeAll", &mut iptables.masquerade_all);
        o.boolean("localhostNodePorts", &mut config.iptables.localhost_node_ports);
        iptables.read(o);
    });
    root.object("ipvs", "KubeProxyIPVSConfiguration", |o| {
        ipvs.read(o);
        o.string("scheduler", &mut config.ipvs.scheduler);
        o.strings("excludeCIDRs", &mut config.ipvs.exclude_cidrs);
        o.boolean("strictARP", &mut config.ipvs.strict_arp);
        o.duration("tcpTimeout", &mut config.ipvs.tcp_timeout);
        o.duration("tcpFinTimeout", &mut config.ipvs.tcp_fin_timeout);
        o.duration("udpTimeout", &mut config.ipvs.udp_timeout);
    });
    root.object("nftables", "KubeProxyNFTablesConfiguration", |o| {
        o.int32("masqueradeBit", &mut config.nftables.masquerade_bit);
        o.boolean("masqueradeAll", &mut nftables.masquerade_all);
        nftables.read(o);
    });
    let all = iptables.masquerade_all;
    let pace = match config.mode.as_str() {
        "ipvs" => Pace {
            masquerade_all: all,
            ..ipvs.or_default(GoDuration::ZERO)
        },
        "nftables" => nftables.or_default(GoDuration::from_secs(1)),
        _ => iptables.or_default(GoDuration::from_secs(1)),
    };
    config.sync_period = pace.sync_period;
    config.min_sync_period = pace.min_sync_period;
    config.masquerade_all = pace.masquerade_all;
}

fn read_winkernel(root: &mut Object<'_>, winkernel: &mut written::Winkernel) {
    root.object("winkernel", "KubeProxyWinkernelConfiguration", |o| {
        o.string("networkName", &mut winkernel.network_name);
        o.string("sourceVip", &mut winkernel.source_vip);
        o.boolean("enableDSR", &mut winkernel.enable_dsr);
        o.string("rootHnsEndpointName", &mut winkernel.root_hns_endpoint_name);
        o.boolean("forwardHealthCheckVip", &mut winkernel.forward_health_check_vip);
    });
}

fn read_conntrack(root: &mut Object<'_>, conntrack: &mut written::Conntrack) {
    root.object("conntrack", "KubeProxyConntrackConfiguration", |o| {
        o.int32("maxPerCore", &mut conntrack.max_per_core);
        o.int32("min", &mut conntrack.min);
        o.duration("tcpEstablishedTimeout", &mut conntrack.tcp_established_timeout);
        o.duration("tcpCloseWaitTimeout", &mut conntrack.tcp_close_wait_timeout);
        o.boolean("tcpBeLiberal", &mut conntrack.tcp_be_liberal);
        o.duration("udpTimeout", &mut conntrack.udp_timeout);
        o.duration("udpStreamTimeout", &mut conntrack.udp_stream_timeout);
    });
}

/// Our own section, and the two fields of the old userspace mode that stood at the top.
fn read_ferry(root: &mut Object<'_>, config: &mut Config) {
    let userspace = config.mode == "userspace";
    let mut ferry = config.ferry.clone();
    let mut port_range = String::new();
    root.string("portRange", &mut port_range);
    if userspace {
        ferry.proxy_port_range = port_range;
        root.duration("udpIdleTimeout", &mut ferry.udp_timeout);
    }
    root.object("ferry", "Ferry", |o| {
        o.string("manifests", &mut ferry.manifests);
        o.string("statusSocket", &mut ferry.status_socket);
        o.boolean("trafficCounters", &mut ferry.traffic_counters);
        o.object("nftables", "FerryNFTables", |o| {
            o.boolean("localhostNodePorts", &mut ferry.nftables_localhost_node_ports);
        });
        o.object("userspace", "FerryUserspace", |o| {
            o.boolean("bind", &mut ferry.userspace_bind);
            o.string("portRange", &mut ferry.proxy_port_range);
            o.duration("udpTimeout", &mut ferry.udp_timeout);
        });
    });
    config.ferry = ferry;
}
