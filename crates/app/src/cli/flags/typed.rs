//! What was typed, before anything is made of it.

use std::fmt;

use super::Flag;
use crate::cli::Output;
use crate::config::values::{GoDuration, Word, parse_bool, quote};
use crate::config::written::{Config, HEALTHZ_PORT, METRICS_PORT, Pace};
use crate::modes::Mode;

/// The values of all flags. Those that mirror a field of the configuration file are kept in `config`.
#[derive(Clone, Debug)]
pub struct Typed {
    pub config: Config,
    pub config_file: String,
    pub write_config_to: String,
    pub cleanup: bool,
    pub init_only: bool,
    pub master: String,
    pub hostname_override: String,
    pub version: VersionFlag,
    pub help: bool,
    pub iptables_pace: Pace,
    pub ipvs_pace: Pace,
    pub masquerade_all: bool,
    pub cluster_cidr: String,
    pub healthz_port: i32,
    pub metrics_port: i32,
    pub boot_id_file: String,
    pub machine_id_file: String,
    /// Flags of the commands beside the daemon.
    pub extra: Extra,
    pub given: Given,
}

/// The flags that were given, with their texts, in order.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(&'static Flag, String)>);

impl Given {
    pub(super) fn push(&mut self, flag: &'static Flag, text: &str) {
        self.0.push((flag, text.to_owned()));
    }

    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|(flag, _)| flag.name == name)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(&'static Flag, String)> {
        self.0.iter()
    }
}

/// The values of the commands' own flags.
#[derive(Clone, Debug)]
pub struct Extra {
    pub output: Word<Output>,
    pub from: String,
    pub to: String,
    pub keep: bool,
    pub rules: bool,
    pub since: GoDuration,
    pub watch: bool,
    pub bundle: String,
    pub file: String,
    pub listen: String,
    pub allow_remote: bool,
    pub other_mode: Word<Mode>,
    pub other_config: String,
    pub other_binary: String,
    pub live: bool,
    pub send: bool,
    /// How long to watch.
    pub seconds: i32,
}

impl Default for Typed {
    fn default() -> Self {
        let config = Config::default();
        let pace = config.pace();
        Self {
            config,
            config_file: String::new(),
            write_config_to: String::new(),
            cleanup: false,
            init_only: false,
            master: String::new(),
            hostname_override: String::new(),
            version: VersionFlag::No,
            help: false,
            iptables_pace: pace,
            ipvs_pace: pace,
            masquerade_all: false,
            cluster_cidr: String::new(),
            healthz_port: HEALTHZ_PORT,
            metrics_port: METRICS_PORT,
            boot_id_file: "/proc/sys/kernel/random/boot_id".to_owned(),
            machine_id_file: "/etc/machine-id,/var/lib/dbus/machine-id".to_owned(),
            extra: Extra {
                output: Word::Known(Output::Text),
                from: String::new(),
                to: String::new(),
                keep: false,
                rules: false,
                since: GoDuration::ZERO,
                watch: false,
                bundle: String::new(),
                file: String::new(),
                listen: "127.0.0.1:8088".to_owned(),
                allow_remote: false,
                other_mode: Word::from(""),
                other_config: String::new(),
                other_binary: String::new(),
                live: false,
                send: false,
                seconds: 10,
            },
            given: Given::default(),
        }
    }
}

/// `--version`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionFlag {
    No,
    Print,
    Raw,
    /// Report this version instead of the built-in one.
    Report(String),
}

impl VersionFlag {
    /// Reads the flag's value; the error is kube-proxy's message.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "raw" {
            return Ok(Self::Raw);
        }
        if let Some(version) = text.strip_prefix('v') {
            let (default_core, _) = core_of(crate::KUBERNETES_VERSION.trim_start_matches('v'));
            let (core, well_formed) = core_of(version);
            if !well_formed {
                return Err(format!("could not parse {} as version", quote(text)));
            }
            if core != default_core {
                return Err(format!(
                    "version {} must match major/minor/patch of default version {}",
                    quote(text),
                    quote(crate::KUBERNETES_VERSION)
                ));
            }
            return Ok(Self::Report(text.to_owned()));
        }
        Ok(if parse_bool(text)? { Self::Print } else { Self::No })
    }
}

/// The `major.minor.patch` of a version, and whether it is one.
fn core_of(version: &str) -> (&str, bool) {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = core.split('.').collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (core, parts.len() == 3 && parts.iter().all(number))
}

impl fmt::Display for VersionFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "false",
            Self::Print => "true",
            Self::Raw => "raw",
            Self::Report(version) => version,
        })
    }
}
