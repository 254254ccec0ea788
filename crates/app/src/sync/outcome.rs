//! What follows from a sync, good or bad.

use std::time::{Duration, Instant};

use ferry_backends::{Applied, Error, RefusedWrites, Retry, Step};
use ferry_model::Family;

use super::{Loop, Parts};
use crate::clock::{Now, unix_seconds};
use crate::events::Event;
use crate::servers::service_health::Wanted;

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
        for trigger in std::mem::take(&mut pending.triggers) {
            let latency = now.calendar.duration_since(trigger).unwrap_or_default();
            metrics.network_programming.observe_duration(&labels, latency);
        }
        self.check_service_health(family);
        self.hand_over_stale_flows(family);
        self.tell_success(family, &applied, took, now);
        if applied.full {
            ferry_host::process::release_free_memory();
        }
        self.served.insert(family);
        self.parts
            .metrics
            .sync_phase
            .observe_duration(&["after"], start.elapsed());
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
        let work = self.pending.get_mut(family).stale.take(plan, family);
        if let (Some(sweeper), Some(work)) = (&self.parts.sweeper, work) {
            sweeper.hand_over(family, work);
        }
    }

    fn tell_success(&self, family: Family, applied: &Applied, took: Duration, now: Now) {
        let level_of_detail = if applied.full { "full" } else { "partial" };
        tracing::debug!(
            ipFamily = family.as_str(),
            kind = level_of_detail,
            added = applied.added,
            removed = applied.removed,
            elapsed = ?took,
            "Synced"
        );
        let mut repairs = Vec::new();
        for repair in &applied.repaired {
            let by = repair
                .by
                .as_deref()
                .map(|by| format!(" (changed by {by})"))
                .unwrap_or_default();
            repairs.push(format!("{}{by}", repair.what));
        }
        if !repairs.is_empty() {
            self.parts.metrics.repairs.increment(&[family.as_str()]);
            let note = format!(
                "{family} rules changed by somebody else were put right: {}",
                repairs.join(", ")
            );
            let node = &self.parts.planner.plan().node().name;
            self.parts.recorder.record(Event::repaired(node, note));
        }
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
            notice.repairs += u64::from(!repairs.is_empty());
            if !repairs.is_empty() {
                notice.last_repair = Some(repairs.join(", "));
            }
            notice.warnings = applied.warnings.clone();
        });
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
            notice.error = Some(error.to_string());
        });
    }
}
