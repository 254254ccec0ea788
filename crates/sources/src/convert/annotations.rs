//! Our own annotations on a Service: `ferry.dev/...`.

use std::time::Duration;

use ferry_model::ServiceOptions;

use super::Interner;
use super::report::Report;
use super::text::duration;
use crate::bounded::quote;
use crate::objects::Annotations;

/// Longer than this is no deadline but a mistake.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3600);

pub(super) fn options(annotations: &Annotations, interner: &Interner, report: &mut Report) -> ServiceOptions {
    let mut options = ServiceOptions::default();
    for (key, value) in &annotations.ours {
        if let Err(reason) = set(&mut options, key, value, interner) {
            report.skip(
                format_args!("annotation ferry.dev/{}", key.escape_debug()),
                reason,
            );
        }
    }
    options
}

fn set(options: &mut ServiceOptions, key: &str, value: &str, interner: &Interner) -> Result<(), String> {
    match key {
        "scheduler" => options.scheduler = Some(interner.get(scheduler(value)?)),
        "drain-deadline" => options.drain = Some(drain(value)?),
        "proxy-protocol" => options.proxy_protocol = proxy_protocol(value)?,
        _ => return Err("is not known; known are scheduler, drain-deadline and proxy-protocol".into()),
    }
    Ok(())
}

/// The kernel's limit for the name of a scheduler is 15 characters; which of them exist is the kernel's to say.
fn scheduler(value: &str) -> Result<&str, String> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    if (1..=15).contains(&value.len()) && value.bytes().all(legal) {
        Ok(value)
    } else {
        Err(format!("{} is not the name of an IPVS scheduler", quote(value)))
    }
}

fn drain(value: &str) -> Result<Duration, String> {
    match duration(value) {
        Some(deadline) if deadline <= MAX_DRAIN => Ok(deadline),
        Some(_) => Err(format!("{} is longer than 24h", quote(value))),
        None => Err(format!("{} is not a duration such as 30s or 5m", quote(value))),
    }
}

fn proxy_protocol(value: &str) -> Result<bool, String> {
    match value {
        "v2" | "true" => Ok(true),
        "none" | "false" => Ok(false),
        other => Err(format!("{} is not v2 or none", quote(other))),
    }
}
