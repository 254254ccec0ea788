//! Which program this is: `kubernetes_build_info` and `kubernetes_feature_enabled`.

use super::text::{Kind, Text};
use crate::KUBERNETES_VERSION;

/// What a scrape tells about the program.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// Feature gates: name, stage, on.
    pub features: Vec<(String, String, bool)>,
}

impl Build {
    pub(super) fn write(&self, text: &mut Text) {
        let name = "kubernetes_build_info";
        text.family(
            name,
            Kind::Gauge,
            "[ALPHA] Always 1; the labels say which Kubernetes release is spoken and what was built.",
        );
        let git_version = format!("{KUBERNETES_VERSION}+ferry.{}", env!("CARGO_PKG_VERSION"));
        let platform = format!("{}/{}", std::env::consts::OS, architecture());
        let labels = [
            ("build_date", ""),
            ("compiler", "rustc"),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("git_version", git_version.as_str()),
            ("go_version", ""),
            ("major", "1"),
            ("minor", "36"),
            ("platform", platform.as_str()),
        ];
        text.sample(name, labels, 1.0);
        if self.features.is_empty() {
            return;
        }
        let name = "kubernetes_feature_enabled";
        text.family(
            name,
            Kind::Gauge,
            "[BETA] Whether a Kubernetes feature is on, 1 for yes.",
        );
        for (feature, stage, on) in &self.features {
            let labels = [("name", feature.as_str()), ("stage", stage.as_str())];
            text.sample(name, labels, f64::from(u8::from(*on)));
        }
    }
}

/// The machine's architecture by the name that Kubernetes has for it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}
