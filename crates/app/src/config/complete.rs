//! From what was typed to one [`Config`]: the file or the flags, then defaults that depend on the platform.

use std::io::Read as _;
use std::path::Path;

use super::Error;
use super::file;
use super::values::{Word, append_port};
use super::written::{Config, DetectLocalMode, Pace, Section};
use super::yaml::DecodeError;
use crate::cli::flags::{FLAGS, FlagError, Typed};
use crate::gates::Gates;
use crate::modes::Mode;

/// More than a ConfigMap can hold.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// What kube-proxy runs in on Linux unless told otherwise.
const DEFAULT_MODE: &str = "iptables";

/// How loud a [`Note`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A choice that was made; of interest where it takes effect.
    Choice,
    Info,
    Warning,
}

/// Something to tell the operator once logging works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub level: Level,
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}

impl Note {
    fn info(message: &str) -> Self {
        Self {
            level: Level::Info,
            message: message.to_owned(),
            fields: Vec::new(),
        }
    }

    fn warning(message: &str) -> Self {
        Self {
            level: Level::Warning,
            ..Self::info(message)
        }
    }

    fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((key, value.into()));
        self
    }
}

/// A configuration with all defaults filled in, not yet judged.
#[derive(Clone, Debug)]
pub struct Completed {
    pub config: Config,
    pub gates: Gates,
    pub notes: Vec<Note>,
}

/// Reads the file, or folds the flags; fills in what depends on the platform.
pub fn complete(typed: &Typed) -> Result<Completed, Error> {
    let mut notes = Vec::new();
    let mut config = if typed.config_file.is_empty() {
        from_flags(typed)
    } else {
        let config = from_file(typed, &mut notes)?;
        notes.extend(void_flags(typed));
        config
    };
    apply_platform_defaults(&mut config, &mut notes);
    if !typed.hostname_override.is_empty() {
        let name = typed.hostname_override.trim();
        if name.is_empty() {
            return Err(Error::Complete("empty hostname-override is invalid".to_owned()));
        }
        config.hostname_override = name.to_lowercase();
    }
    let gates = Gates::new(&config.feature_gates).map_err(Error::Complete)?;
    notes.extend(gates.warnings().iter().map(|warning| Note::warning(warning)));
    Ok(Completed { config, gates, notes })
}

/// The text of a file and nothing beside it, as if it named another mode if one is given.
pub fn complete_written(text: &str, mode: Option<Word<Mode>>) -> Result<Completed, Error> {
    let decoded = file::decode(text, mode);
    let decoded = decoded.map_err(|DecodeError { message, line }| {
        let place = line.map_or_else(String::new, |line| format!(" (line {line})"));
        Error::Complete(format!("failed to decode: {message}{place}"))
    })?;
    let (mut config, mut notes) = (decoded.config, Vec::new());
    apply_platform_defaults(&mut config, &mut notes);
    let gates = Gates::new(&config.feature_gates).map_err(Error::Complete)?;
    Ok(Completed { config, gates, notes })
}

fn from_flags(typed: &Typed) -> Config {
    let mut config = typed.config.clone();
    config.set_pace(if config.section() == Section::Ipvs {
        Pace {
            masquerade_all: typed.masquerade_all,
            ..typed.ipvs_pace
        }
    } else {
        Pace {
            masquerade_all: typed.masquerade_all,
            ..typed.iptables_pace
        }
    });
    if typed.given.contains("cluster-cidr") {
        config.cluster_cidrs = typed.cluster_cidr.split(',').map(str::to_owned).collect();
    }
    if typed.write_config_to.is_empty() {
        let address = |address: &str, port| {
            if port == 0 {
                String::new()
            } else {
                append_port(address, port)
            }
        };
        config.healthz_bind_address = address(&config.healthz_bind_address, typed.healthz_port);
        config.metrics_bind_address = address(&config.metrics_bind_address, typed.metrics_port);
    }
    config
}

fn from_file(typed: &Typed, notes: &mut Vec<Note>) -> Result<Config, Error> {
    let path = &typed.config_file;
    let text = read(Path::new(path)).map_err(Error::Complete)?;
    // `--mode` of a command asks about another mode than the file's.
    let mode = Some(typed.config.mode.clone()).filter(|_| typed.given.contains("mode"));
    let decoded = file::decode(&text, mode).map_err(|DecodeError { message, line }| {
        let place = line.map_or_else(|| path.clone(), |line| format!("{path}, line {line}"));
        Error::Complete(format!("failed to decode: {message} ({place})"))
    })?;
    if let Some((why, lines)) = decoded.strict_error {
        let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
        notes.push(
            Note::info("Using lenient decoding as strict decoding failed")
                .with("err", why)
                .with("file", path.clone())
                .with("lines", lines.join(",")),
        );
    }
    let mut config = decoded.config;
    forget_split_streams(&mut config, path, notes);
    Ok(overlay(typed, config)?)
}

/// kube-proxy lets only the flags split its streams: what a file says about it is overwritten by their defaults.
fn forget_split_streams(config: &mut Config, path: &str, notes: &mut Vec<Note>) {
    let options = &mut config.logging.options;
    for (format, options) in [("text", &mut options.text), ("json", &mut options.json)] {
        if std::mem::take(&mut options.split_stream) {
            let message = format!(
                "logging.options.{format}.splitStream has no effect in a file; use --log-{format}-split-stream"
            );
            notes.push(Note::warning(&message).with("file", path));
        }
    }
}

/// The whole text of a file, or Go's message why not.
fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let file = std::fs::File::open(path).map_err(|error| format!("open {shown}: {}", reason(&error)))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("read {shown}: {}", reason(&error)))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("read {shown}: larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!(
            "failed to decode: {shown} is not UTF-8 text (byte {})",
            error.utf8_error().valid_up_to()
        )
    })
}

/// The system's message in Go's spelling: lower case, without the number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// What a file says with the flags that count beside it: they are set once more, on top.
fn overlay(typed: &Typed, mut config: Config) -> Result<Config, FlagError> {
    // The first pattern that fits counts, so the flag's come first.
    let mut patterns = std::mem::take(&mut config.logging.vmodule);
    let mut both = Typed {
        config,
        ..Typed::default()
    };
    for (flag, text) in typed.given.iter().filter(|(flag, _)| flag.counts_with_config) {
        flag.set(&mut both, text)?;
    }
    both.config.logging.vmodule.append(&mut patterns);
    Ok(both.config)
}

fn void_flags(typed: &Typed) -> Vec<Note> {
    let void = FLAGS
        .iter()
        .filter(|flag| !flag.counts_with_config && typed.given.contains(flag.name));
    void.map(|flag| {
        Note::warning("Flag has no effect because --config is given").with("flag", format!("--{}", flag.name))
    })
    .collect()
}

fn apply_platform_defaults(config: &mut Config, notes: &mut Vec<Note>) {
    if config.mode.is_blank() {
        notes.push(Note {
            level: Level::Choice,
            ..Note::info("Using iptables proxy")
        });
        config.mode = Word::from(DEFAULT_MODE);
    }
    let unrestricted = config.node_port_addresses.as_ref().is_none_or(Vec::is_empty);
    if config.section() == Section::Nftables && unrestricted {
        config.node_port_addresses = Some(vec!["primary".to_owned()]);
    }
    if config.detect_local_mode.is_blank() {
        config.detect_local_mode = Word::Known(DetectLocalMode::ClusterCidr);
    }
}
