//! Logging: klog's text and JSON formats over `tracing`.
//! It writes to the standard streams and nothing else.
//! What always holds: one event is one write. `error!`, `warn!` and `info!` are klog's E, W and I at verbosity 0,
//! `debug!` is V(2), `trace!` is V(4); a field `v` sets any other verbosity, as in `info!(v = 3, "...")`.
//! Libraries are quieter: their `info!` is V(4), `debug!` V(6), `trace!` V(8).

mod format;
mod layer;
mod pattern;

use std::io::Write;
use std::sync::OnceLock;

use tracing_subscriber::prelude::*;

pub use layer::KlogLayer;
pub use pattern::Pattern;

/// Where and how much to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    pub format: Format,
    pub verbosity: u32,
    /// Verbosities of single source files; the first pattern that fits counts.
    pub patterns: Vec<Pattern>,
    /// Errors to stderr, the rest to stdout; else everything to stderr.
    pub split_stream: bool,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: Format::Text,
            verbosity: 0,
            patterns: Vec::new(),
            split_stream: false,
        }
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Events of this target are printed without quotes, as klog's unstructured lines are.
pub const PLAIN: &str = "ferry::plain";

static GLOBAL: OnceLock<KlogLayer> = OnceLock::new();

/// Starts logging, or changes how it is done from now on.
pub fn init(logging: &Logging) {
    let mut fresh = false;
    let layer = GLOBAL.get_or_init(|| {
        fresh = true;
        KlogLayer::new(logging.clone(), Box::new(write_standard))
    });
    if fresh {
        // Fails only if a test harness has its own subscriber; its choice stands.
        let _ = tracing_subscriber::registry().with(layer.clone()).try_init();
    } else {
        layer.configure(logging.clone());
    }
}

/// The verbosity in force.
pub fn verbosity() -> u32 {
    GLOBAL.get().map_or(0, KlogLayer::verbosity)
}

/// Changes the verbosity of the running process.
pub fn set_verbosity(verbosity: u32) {
    if let Some(layer) = GLOBAL.get() {
        layer.set_verbosity(verbosity);
    }
}

/// A line for one of the standard streams. A stream that is gone must not take the proxy down.
fn write_standard(to_stdout: bool, line: &[u8]) {
    let _ = if to_stdout {
        std::io::stdout().write_all(line)
    } else {
        std::io::stderr().write_all(line)
    };
}
