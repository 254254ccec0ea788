//! What follows from a sync, good or bad.

use std::time::{Duration, Instant};

use ferry_backends::{Applied, Error, RefusedWrites, Retry, Step};
use ferry_model::Family;

use super::repairs::{MAX_PAUSE, Report};
use super::{Loop, Parts};
use crate::bounded::bounded;
use crate::clock::{Now, unix_seconds};
use crate::events::Event;
use crate::history::Sync;
use crate::metrics::Exemplar;
use crate::servers::service_health::Wanted;

/// No more is kept of what a sync says.
const MAX_TEXT: usize = 1024;
/// A change of so many services leaves memory behind that is worth giving back.
const LARGE_CHANGE: usize = 1000;

impl Loop {
    pub(super) fn succeeded(&mut self, family: Family, applied: Applied, took: Duration) {
        let start = Instant::now();
        let now = Now::read();
        let labels = [family.as_str()];
        let Parts {
            health,
            metrics,
            planner,
            ..
        } = &self.parts;
        health.updated(family, now);
        metrics.last_sync.set(&labels, unix_seconds(now.calendar));
        let by_kind = if applied.full {
            &metrics.full_sync_duration
        } else {
            &metrics.partial_sync_duration
        };
        by_kind.observe_duration(&labels, took);
        let RefusedWrites { partial, full } = applied.refused;
        if partial + full > 0 {
            metrics.sync_failures.add(&labels, (partial + full) as f64);
        }
        if partial > 0 {
            metrics.partial_restore_failures.add(&labels, partial as f64);
        }
        metrics.written.add(&labels, applied.added as f64);
        metrics.removed.add(&labels, applied.removed as f64);
        for table in &applied.tables {
            metrics
                .rules
                .set(&[table.table, family.as_str()], table.total as f64);
            metrics
                .rules_last
                .set(&[table.table, family.as_str()], table.written as f64);
        }
        let tally = *planner.plan().tally().families.get(family);
        metrics
            .no_local_endpoints
            .set(&["internal", family.as_str()], tally.no_local_internal as f64);
        metrics
            .no_local_endpoints
            .set(&["external", family.as_str()], tally.no_local_external as f64);
        let pending = self.pending.get_mut(family);
        for (service, trigger) in std::mem::take(&mut pending.triggers) {
            let latency = now.calendar.duration_since(trigger).unwrap_or_default();
            let exemplar = Exemplar {
                label: ("service", service.as_str().to_owned()),
                value: latency.as_secs_f64(),
                at: now.calendar,
            };
            metrics.network_programming.observe_exemplar(&labels, exemplar);
        }
        let is_large = applied.full || self.pending.get(family).services.len() >= LARGE_CHANGE;
        self.check_service_health(family);
        self.hand_over_stale_flows(family);
        self.tell_success(family, &applied, took, now);
        if is_large {
            ferry_host::process::release_free_memory();
        }
        self.served.insert(family);
        let after = start.elapsed();
        self.parts.metrics.sync_phase.observe_duration(&["after"], after);
        self.parts.history.synced(&Sync {
            family,
            number: self.parts.board.syncs(family),
            applied: &applied,
            apply: took,
            after,
            changes: self.pending.get_mut(family).changes.take(),
        });
    }

    fn check_service_health(&mut self, family: Family) {
        let Parts {
            planner,
            service_health,
            ..
        } = &mut self.parts;
        let pending = self.pending.get_mut(family);
        if std::mem::take(&mut pending.node_changed) {
            service_health.set_addresses(family, &planner.plan().node().family(family).node_ports);
        }
        for name in std::mem::take(&mut pending.services) {
            let check = planner
                .plan()
                .service(&name)
                .and_then(|service| service.health_check);
            let wanted = check.and_then(|check| {
                let local_endpoints = (*check.local_endpoints.get(family))?;
                Some(Wanted {
                    port: check.port,
                    local_endpoints,
                })
            });
            service_health.set(family, &name, wanted);
        }
        service_health.open();
    }

    fn hand_over_stale_flows(&mut self, family: Family) {
        let plan = self.parts.planner.plan();
        let pending = self.pending.get_mut(family);
        let considered = std::mem::take(&mut pending.udp_endpoints_changed);
        match (&self.parts.sweeper, pending.stale.take(plan, family)) {
            (Some(sweeper), Some(work)) => sweeper.hand_over(family, work),
            // kube-proxy looks through the table and finds nothing.
            (Some(_), None) if considered => {
                let duration = &self.parts.metrics.conntrack_duration;
                duration.observe_duration(&[family.as_str()], Duration::ZERO);
            }
            (Some(_), None) | (None, _) => {}
        }
    }

    fn tell_success(&mut self, family: Family, applied: &Applied, took: Duration, now: Now) {
        let level_of_detail = if applied.full { "full" } else { "partial" };
        tracing::debug!(
            ipFamily = family.as_str(),
            kind = level_of_detail,
            added = applied.added,
            removed = applied.removed,
            elapsed = ?took,
            "Synced"
        );
        let repairs = self.tell_repairs(family, applied);
        for warning in &applied.warnings {
            tracing::warn!(
                ipFamily = family.as_str(),
                warning,
                "Sync succeeded with a warning"
            );
        }
        self.parts.board.change_family(family, |notice| {
            notice.syncs += 1;
            notice.last_success = Some(now.calendar);
            notice.last_duration = took;
            notice.error = None;
            if let Some(repairs) = repairs {
                notice.repairs += 1;
                notice.last_repair = Some(repairs);
            }
            notice.warnings = applied
                .warnings
                .iter()
                .map(|warning| bounded(warning.clone(), MAX_TEXT))
                .collect();
        });
    }

    /// Counts and tells what was put right; returns it in words.
    fn tell_repairs(&mut self, family: Family, applied: &Applied) -> Option<String> {
        if applied.repaired.is_empty() {
            return None;
        }
        let words = applied.repaired.iter().map(|repair| match &repair.by {
            Some(by) => format!("{} (changed by {by})", repair.what),
            None => repair.what.clone(),
        });
        let words = bounded(words.collect::<Vec<String>>().join(", "), MAX_TEXT);
        self.parts.metrics.repairs.increment(&[family.as_str()]);
        let note = match self.repairs.get_mut(family).repaired(Instant::now()) {
            Report::Single => Some(format!(
                "{family} rules changed by somebody else were put right: {words}"
            )),
            Report::Fight { repairs, pause } => Some(format!(
                "Somebody keeps changing the {family} rules, perhaps another proxy on this node: put right {repairs} \
                 times, from now on after a pause ({pause:?}, at most {MAX_PAUSE:?}); last: {words}"
            )),
            Report::Nothing => None,
        };
        if let Some(note) = note {
            let node = &self.parts.planner.plan().node().name;
            self.parts.recorder.record(Event::repaired(node, note));
        }
        Some(words)
    }

    /// A backend that had succeeded before looks only at what changed, so then it was a partial sync that failed.
    pub(super) fn failed(&mut self, family: Family, error: &Error, partial: bool) {
        let metrics = &self.parts.metrics;
        let labels = [family.as_str()];
        metrics.sync_failures.increment(&labels);
        if partial && error.step == Step::Write {
            metrics.partial_restore_failures.increment(&labels);
        }
        let wait = self
            .pacers
            .get(family)
            .wake_at()
            .saturating_duration_since(Instant::now());
        let hint = match error.retry {
            Retry::Helps => None,
            Retry::Futile => Some("trying again will not help before somebody changes the node"),
        };
        tracing::error!(ipFamily = family.as_str(), retryingTime = ?wait, err = %error, hint, "Sync failed");
        // Whatever asked for this sync still waits.
        self.parts.health.queued(family, Now::read());
        self.parts.board.change_family(family, |notice| {
            notice.failures += 1;
            notice.error = Some(bounded(error.to_string(), MAX_TEXT));
        });
        self.parts
            .history
            .failed(family, &bounded(error.to_string(), MAX_TEXT));
    }
}
