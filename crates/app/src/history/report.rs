//! What is remembered, as values.

use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What `ferry history` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// The oldest first.
    pub entries: Vec<Entry>,
    /// How much memory the whole history takes, of how much it may take.
    pub bytes: usize,
    pub bound: usize,
    /// Entries that there was no room for any more.
    pub forgotten: u64,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub number: u64,
    /// RFC 3339, in UTC.
    pub time: String,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum What {
    /// Everything was listed for the first time, and planned.
    Listed {
        services: usize,
        slices: usize,
        plan_seconds: f64,
    },
    /// Objects changed, and with them the plan.
    Changed {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        objects: Vec<ObjectReport>,
        #[serde(default, skip_serializing_if = "is_zero")]
        more_objects: usize,
        /// What is planned for the node itself changed: its addresses, networks or zone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        node: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        services: Vec<ServiceChange>,
        #[serde(default, skip_serializing_if = "is_zero")]
        more_services: usize,
        plan_seconds: f64,
        /// When each family had it in force.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        in_force: Vec<InForce>,
    },
    /// A family was brought into force.
    Synced {
        family: String,
        /// Which of the family's successful syncs.
        sync: u64,
        full: bool,
        /// The first and the last of the changes that it carried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes: Option<(u64, u64)>,
        apply_seconds: f64,
        after_seconds: f64,
        added: usize,
        removed: usize,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        repaired: Vec<RepairReport>,
        #[serde(default, skip_serializing_if = "is_zero")]
        more_repaired: usize,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// A sync failed, so many times in a row for the same reason; the time is that of the last.
    Failed {
        family: String,
        error: String,
        times: u64,
    },
    /// Objects, or parts of them, are not served.
    Refused {
        objects: Vec<String>,
        #[serde(default, skip_serializing_if = "is_zero")]
        more: usize,
    },
}

/// An object that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectReport {
    /// Kind and name.
    pub object: String,
    /// Its resourceVersion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// What became of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceChange {
    /// `namespace/name`.
    pub service: String,
    /// added, changed or removed.
    pub what: String,
    /// Endpoints that joined or left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveReport>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_moves: usize,
    /// Frontends that came, went or lead elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frontends: Vec<ChangedPort>,
}

/// An endpoint that joined or left a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    pub port: String,
    pub endpoint: SocketAddr,
    /// joined or left.
    pub way: String,
    pub pools: String,
    pub why: String,
}

/// A frontend of which something else is decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPort {
    pub port: String,
    pub frontend: String,
    pub before: String,
    pub after: String,
}

/// What somebody else had changed and was put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairReport {
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// When a change was in the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    pub family: String,
    pub sync: u64,
    /// After it was planned.
    pub seconds_later: f64,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl HistoryReport {
    /// Of all entries, the oldest first; those of a service, if one is named, and since a moment, if one is.
    /// What concerns everyone, such as repairs and failures, concerns each service.
    pub(super) fn of(
        mut entries: Vec<Entry>,
        service: Option<&str>,
        since: Option<&str>,
        bytes: usize,
        forgotten: u64,
    ) -> Self {
        note_when_in_force(&mut entries);
        entries.retain(|entry| since.is_none_or(|since| entry.time.as_str() >= since));
        if let Some(service) = service {
            entries.retain_mut(|entry| entry.restrict_to(service));
        }
        Self {
            entries,
            bytes,
            bound: super::BOUND,
            forgotten,
        }
    }
}

/// Each change was in force with the first sync of a family that carried it.
fn note_when_in_force(entries: &mut [Entry]) {
    let syncs: Vec<(String, String, u64, (u64, u64))> = entries
        .iter()
        .filter_map(|entry| match &entry.what {
            What::Synced {
                family,
                sync,
                changes: Some(changes),
                ..
            } => Some((entry.time.clone(), family.clone(), *sync, *changes)),
            _ => None,
        })
        .collect();
    for entry in entries {
        let What::Changed { in_force, .. } = &mut entry.what else {
            continue;
        };
        let carried =
            |(_, _, _, (first, last)): &&(_, _, _, (u64, u64))| (*first..=*last).contains(&entry.number);
        let begin = syncs.partition_point(|(_, _, _, (_, last))| *last < entry.number);
        // Two families, each once: what carries a change comes soon after it.
        for (time, family, sync, _) in syncs[begin..].iter().filter(carried).take(4) {
            if !in_force.iter().any(|known| known.family == *family) {
                in_force.push(InForce {
                    family: family.clone(),
                    sync: *sync,
                    seconds_later: seconds_between(&entry.time, time),
                });
            }
        }
    }
}

fn seconds_between(from: &str, to: &str) -> f64 {
    let parse = |text: &str| text.parse::<Timestamp>().ok();
    let between = parse(from)
        .zip(parse(to))
        .map(|(from, to)| to.duration_since(from));
    between.map_or(0.0, |between| between.as_secs_f64())
}

impl Entry {
    /// Leaves only what concerns a service; tells whether anything does.
    fn restrict_to(&mut self, service: &str) -> bool {
        match &mut self.what {
            What::Listed { .. } | What::Failed { .. } => true,
            What::Changed {
                services,
                more_services,
                node,
                ..
            } => {
                services.retain(|change| change.service == service);
                *more_services = 0;
                *node || !services.is_empty()
            }
            What::Synced {
                repaired, warnings, ..
            } => {
                warnings.retain(|warning| warning.contains(service));
                !repaired.is_empty() || !warnings.is_empty()
            }
            What::Refused { objects, .. } => {
                let of = format!("Service {service}: ");
                objects.retain(|object| object.starts_with(&of));
                !objects.is_empty()
            }
        }
    }
}
