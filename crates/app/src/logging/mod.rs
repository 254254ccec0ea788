//! Logging: klog's text and JSON formats over `tracing`.
//! It writes to the standard streams and nothing else.
//! Levels: `error!`, `warn!` and `info!` are klog's E, W and I at verbosity 0, `debug!` is V(2), `trace!` is V(4);
//! any other verbosity is an event field, as in `info!(v = 3, "…")`.

/// Where and how much to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    pub format: Format,
    pub verbosity: u32,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}
