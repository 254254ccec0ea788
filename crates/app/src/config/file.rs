//! The configuration file: `kubeproxy.config.k8s.io/v1alpha1`, kind `KubeProxyConfiguration`.
//! Pure: text in, [`Config`] out, and back.
//! What always holds: what kube-proxy 1.36 accepts is accepted, with the same meaning; what it refuses is
//! refused with its message, and the line.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::values::{GoDuration, Word, append_port, parse_ip, quote};
use super::written::{API_VERSION, Config, HEALTHZ_PORT, KIND, METRICS_PORT, Section};
use super::yaml::{self, DecodeError, Document, Node, Unknown, Value};
use crate::modes::Mode;

/// A usable file.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub config: Config,
    /// Why a strict reader would refuse the file (unknown or repeated fields), with the lines.
    pub strict_error: Option<(String, Vec<usize>)>,
}

/// The configuration as a file, keys sorted.
pub fn to_yaml(config: &Config) -> String {
    yaml::yaml(config)
}

/// The body of `/configz`.
pub fn configz(config: &Config) -> String {
    format!("{{\"kubeproxy.config.k8s.io\":{}}}", yaml::json(config))
}

/// Reads the first document of a file, as if it named another mode if one is given.
pub fn decode(text: &str, mode: Option<Word<Mode>>) -> Result<Decoded, DecodeError> {
    let is_json = text.trim_start().starts_with('{');
    if is_json {
        check_json(text)?;
    }
    let document = yaml::read_first(text).map_err(|error| DecodeError::whole(error.to_string()))?;
    check_kind(&document, text)?;
    let (mut config, mut unknown) = yaml::decode::<Config>(&document.root)?;
    if let Some(mode) = mode {
        config.mode = mode;
    }
    take_old_fields(&document.root, &mut config, &mut unknown)?;
    set_defaults(&document.root, &mut config);
    Ok(Decoded {
        config,
        strict_error: strict_error(&document.duplicates, unknown, is_json),
    })
}

/// What begins like JSON must be JSON: one object, and nothing behind it.
fn check_json(text: &str) -> Result<(), DecodeError> {
    let whole: Result<IgnoredAny, _> = serde_json::from_str(text);
    whole.map(drop).map_err(|error| DecodeError {
        message: format!("couldn't get version/kind; json parse error: {error}"),
        line: Some(error.line()),
    })
}

/// Whether the file is a configuration at all.
fn check_kind(document: &Document, text: &str) -> Result<(), DecodeError> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename = "KubeProxyConfiguration", rename_all = "camelCase")]
    struct TypeMeta {
        kind: String,
        api_version: String,
    }
    let meta = match document.root.value {
        Value::Map(_) => yaml::decode::<TypeMeta>(&document.root)?.0,
        Value::Null => TypeMeta::default(),
        _ => {
            let reason = "couldn't get version/kind; json parse error: the document is not an object";
            return Err(DecodeError::whole(reason));
        }
    };
    let missing = |what| DecodeError::whole(format!("Object '{what}' is missing in '{}'", shortened(text)));
    if meta.kind.is_empty() {
        return Err(missing("Kind"));
    }
    if meta.api_version.is_empty() {
        return Err(missing("apiVersion"));
    }
    if meta.kind != KIND || meta.api_version != API_VERSION {
        return Err(DecodeError::whole(format!(
            "no kind {} is registered for version {} in scheme \"ferry\"",
            quote(&meta.kind),
            quote(&meta.api_version)
        )));
    }
    Ok(())
}

/// Enough of a file to recognise it in a message.
fn shortened(text: &str) -> String {
    const LIMIT: usize = 400;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// What a strict reader says about repeated and unknown fields.
fn strict_error(
    duplicates: &[(String, usize)],
    mut unknown: Unknown,
    is_json: bool,
) -> Option<(String, Vec<usize>)> {
    let mut reasons = Vec::new();
    if is_json {
        let repeated = duplicates.iter().map(|(key, _)| quote(key));
        reasons.extend(repeated.map(|key| format!("duplicate field {key}")));
    } else if !duplicates.is_empty() {
        let mut text = "yaml: unmarshal errors:".to_owned();
        for (key, line) in duplicates {
            text.push_str(&format!("\n  line {line}: key {} already set in map", quote(key)));
        }
        reasons.push(text);
    }
    unknown.sort();
    let paths = unknown.iter().map(|(path, _)| quote(path));
    reasons.extend(paths.map(|path| format!("unknown field {path}")));
    if reasons.is_empty() {
        return None;
    }
    let lines = duplicates.iter().chain(&unknown).map(|(_, line)| *line).collect();
    Some((format!("strict decoding error: {}", reasons.join(", ")), lines))
}

/// In userspace mode the two fields that the old one had at the top count, unless our own section says otherwise.
fn take_old_fields(root: &Node, config: &mut Config, unknown: &mut Unknown) -> Result<(), DecodeError> {
    let port_range = std::mem::take(&mut config.port_range);
    if config.section() != Section::Userspace {
        return Ok(());
    }
    let ours = &mut config.ferry.userspace;
    if root.at(&["ferry", "userspace", "portRange"]).is_none() {
        ours.port_range = port_range;
    }
    if let Some(timeout) = root.at(&["udpIdleTimeout"]) {
        let (timeout, _) = yaml::decode::<GoDuration>(timeout)?;
        if root.at(&["ferry", "userspace", "udpTimeout"]).is_none() {
            ours.udp_timeout = timeout;
        }
    }
    unknown.retain(|(path, _)| path != "udpIdleTimeout");
    Ok(())
}

/// Fills in what depends on other fields, and what kube-proxy takes for unset when it is zero.
fn set_defaults(root: &Node, config: &mut Config) {
    let default = Config::default();
    fn or<T: Default + PartialEq>(value: &mut T, default: T) {
        if *value == T::default() {
            *value = default;
        }
    }
    or(&mut config.client.content_type, default.client.content_type);
    or(&mut config.client.qps, default.client.qps);
    or(&mut config.client.burst, default.client.burst);
    or(&mut config.logging.format, default.logging.format);
    if config.logging.flush_frequency.duration.is_zero() {
        config.logging.flush_frequency = default.logging.flush_frequency;
    }
    or(&mut config.config_sync_period, default.config_sync_period);
    or(&mut config.bind_address, default.bind_address);
    let (any, local) = match parse_ip(&config.bind_address) {
        Some(ip) if ip.is_ipv4() => ("0.0.0.0", "127.0.0.1"),
        _ => ("::", "::1"),
    };
    let server = |name, address: &str, default: &str, port| {
        let given = root.at(&[name]).is_some() && !address.is_empty();
        append_port(if given { address } else { default }, port)
    };
    config.healthz_bind_address = server(
        "healthzBindAddress",
        &config.healthz_bind_address,
        any,
        HEALTHZ_PORT,
    );
    config.metrics_bind_address = server(
        "metricsBindAddress",
        &config.metrics_bind_address,
        local,
        METRICS_PORT,
    );
    let mut pace = config.pace();
    or(&mut pace.sync_period, default.iptables.sync_period);
    if config.section() != Section::Ipvs {
        or(&mut pace.min_sync_period, default.iptables.min_sync_period);
    }
    config.set_pace(pace);
}
