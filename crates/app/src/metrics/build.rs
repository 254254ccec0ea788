//! Which program this is: `kubernetes_build_info` and `kubernetes_feature_enabled`.

use super::vector::Level;
use super::{Catalogue, Text};
use crate::KUBERNETES_VERSION;

/// What a scrape tells about the program.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// Feature gates: name, stage, on.
    pub features: Vec<(String, String, bool)>,
}

impl Build {
    pub(super) fn write(&self, catalogue: &Catalogue, text: &mut Text) {
        let git_version = format!("{KUBERNETES_VERSION}+ferry.{}", env!("CARGO_PKG_VERSION"));
        let platform = format!("{}/{}", std::env::consts::OS, architecture());
        let labels = vec!["", "rustc", "", "", &git_version, "", "1", "36", &platform];
        catalogue.build_info.write(text, [(labels, Level(1.0))]);
        let features = self.features.iter();
        let features = features.map(|(name, stage, on)| (vec![name, stage], Level(f64::from(u8::from(*on)))));
        catalogue.feature_enabled.write(text, features);
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
