//! The configuration file: `kubeproxy.config.k8s.io/v1alpha1`, kind `KubeProxyConfiguration`.
//! Pure: text in, [`Config`] out, and back.
//! What always holds: what kube-proxy 1.36 accepts is accepted, with the same meaning; what it refuses is
//! refused with its message, and the line.

mod decode;
mod encode;
mod object;

pub use decode::{Decoded, decode};
pub use encode::{configz, to_yaml};

/// The group and version of the file.
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the file.
pub(super) const KIND: &str = "KubeProxyConfiguration";

/// Why a file cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", line.map(|line| format!(" (line {line})")).unwrap_or_default())]
pub struct DecodeError {
    pub message: String,
    pub line: Option<usize>,
}

impl DecodeError {
    fn whole(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            line: None,
        }
    }
}
