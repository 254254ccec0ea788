//! A changed configuration file: a good one is taken by starting again, a bad one is refused and the old one stays.

use std::sync::Arc;

use crate::config::{ConfigChange, ConfigWatch, Settings};
use crate::events::{Event, Recorder};
use crate::metrics::Metrics;
use crate::sync::{Signal, Stop};

/// Watches the file that the settings came from, if they came from one.
pub(super) fn watch(
    settings: &Settings,
    node: &Arc<str>,
    metrics: &Arc<Metrics>,
    recorder: &Recorder,
    signal: &Arc<Signal>,
) -> anyhow::Result<()> {
    let Some(mut watch) = ConfigWatch::start(settings)? else {
        return Ok(());
    };
    let (node, metrics) = (Arc::clone(node), Arc::clone(metrics));
    let (recorder, signal) = (recorder.clone(), Arc::clone(signal));
    let follow = move || {
        while let Some(change) = watch.blocking_next() {
            match change {
                ConfigChange::Accepted(new) => return signal.stop(Stop::Reconfigure(new.mode)),
                ConfigChange::Refused(reason) => {
                    metrics.config_refused.increment(&[]);
                    tracing::error!(
                        err = reason,
                        "Changed configuration is not valid; the old one stays in force"
                    );
                    let note = format!("The changed configuration is not valid, the old one stays: {reason}");
                    recorder.record(Event::config_refused(&node, note));
                }
                ConfigChange::Same => tracing::info!("The configuration file changed, what it says did not"),
            }
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(follow)?;
    Ok(())
}
