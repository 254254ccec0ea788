//! Configuration: flags and `KubeProxyConfiguration` files in, one checked [`Settings`] out.
//! It reads and watches the configuration file and touches nothing else of the world.
//! What always holds: a [`Settings`] value exists only if the whole configuration was valid.

mod complete;
mod file;
mod sanity;
mod settings;
mod validate;
pub mod values;
mod watch;
pub mod written;
pub mod yaml;

use std::sync::Arc;

pub use complete::{Completed, Level, Note, complete, complete_written};
pub use file::{Decoded, configz, decode, to_yaml};
pub use sanity::{NodeFacts, Sanity, sanity};
pub use settings::{
    ApiClient, Conntrack, DetectLocal, Iptables, Ipvs, Nftables, NodePortAddresses, PortRange, Settings,
    Source, Userspace,
};

pub use watch::{ConfigChange, ConfigWatch};
pub use written::Section;
pub use yaml::DecodeError;

use crate::cli::flags::{self, Typed};

/// Why there are no settings; each step of kube-proxy's start has its prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Flags(#[from] flags::FlagError),
    #[error("failed complete: {0}")]
    Complete(String),
    #[error("initialize logging: {0}")]
    Logging(String),
    #[error("failed validate: {0}")]
    Validate(String),
}

/// The settings that a command line asks for.
pub fn settings(typed: Arc<Typed>) -> Result<Settings, Error> {
    complete(&typed)?.validate(typed)
}

impl Settings {
    /// The configuration in force, as a file.
    pub fn written(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.configz).unwrap_or_default();
        let config = decode(&body["kubeproxy.config.k8s.io"].to_string(), None);
        config.map_or_else(|_| self.configz.clone(), |decoded| to_yaml(&decoded.config))
    }

    /// The settings of the daemon started with these arguments, the program's name left out.
    pub fn from_args<S: AsRef<str>>(args: &[S]) -> Result<Self, Error> {
        let args: Vec<String> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
        let mut typed = Typed::default();
        flags::parse(&[flags::FLAGS], &args, &mut typed)?;
        settings(Arc::new(typed))
    }
}

/// The door for fuzzing: any bytes may be refused, none may panic, and what is accepted must be written in a form
/// that is read back the same, and judged without surprise.
pub fn fuzz_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(decoded) = decode(text, None) else { return };
    let written = to_yaml(&decoded.config);
    let again = decode(&written, None);
    assert!(
        again.is_ok_and(|again| again.config == decoded.config),
        "not read back the same:\n{written}"
    );
    if let Ok(gates) = crate::gates::Gates::new(&decoded.config.feature_gates) {
        let completed = Completed {
            config: decoded.config,
            gates,
            notes: Vec::new(),
        };
        let _ = completed.validate(Arc::new(Typed::default()));
    }
}
