//! What `--version` prints.

use super::flags::VersionFlag;
use crate::KUBERNETES_VERSION;
use crate::metrics::architecture;

/// The version that is reported to clients: the flag's, or the built-in one.
pub(crate) fn reported(flag: &VersionFlag) -> &str {
    match flag {
        VersionFlag::Report(version) => version,
        VersionFlag::No | VersionFlag::Print | VersionFlag::Raw => KUBERNETES_VERSION,
    }
}

/// The text that was asked for, if one was. Tools read the first line; our own version follows it
/// unless we stand in for kube-proxy.
pub(super) fn text(flag: &VersionFlag, program: &str) -> Option<String> {
    match flag {
        VersionFlag::No | VersionFlag::Report(_) => None,
        VersionFlag::Print if program == "kube-proxy" => Some(format!("Kubernetes {KUBERNETES_VERSION}\n")),
        VersionFlag::Print => Some(format!(
            "Kubernetes {KUBERNETES_VERSION}\nFerry {}\n",
            env!("CARGO_PKG_VERSION")
        )),
        VersionFlag::Raw => Some(raw()),
    }
}

/// Go's dump of its version value.
fn raw() -> String {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let architecture = architecture();
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", EmulationMajor:\"{major}\", EmulationMinor:\"{minor}\", \
         MinCompatibilityMajor:\"{major}\", MinCompatibilityMinor:\"35\", GitVersion:\"{KUBERNETES_VERSION}\", \
         GitCommit:\"\", GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"ferry {}\", \
         Platform:\"{}/{architecture}\"}}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
    )
}
