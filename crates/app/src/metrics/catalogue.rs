//! The list of metrics: one line of name, one of help.

use std::sync::Arc;

use super::{Counters, Family, Gauges, Histograms};
use crate::modes::Mode;

const FAMILY: &[&str] = &["ip_family"];

/// Collects the families that a scrape shows.
#[derive(Default)]
struct Shelf(Vec<Arc<dyn Family>>);

impl Shelf {
    fn put<F: Family + 'static>(&mut self, shown: bool, family: F) -> Arc<F> {
        let family = Arc::new(family);
        // One that belongs to another mode can still be counted; nobody sees it.
        if shown {
            self.0.push(Arc::clone(&family) as Arc<dyn Family>);
        }
        family
    }
}

/// Declares the struct, its constructor and, for tests, a way to touch every family.
macro_rules! catalogue {
    (|$mode:ident| $( $(#[$doc:meta])* $field:ident: $kind:ident,
        $name:expr, $help:expr, $labels:expr $(, $bounds:expr)?; )*) => {
        /// Every counter, gauge and histogram by the name that the code has for it.
        #[derive(Debug)]
        pub struct Catalogue { $( $(#[$doc])* pub $field: Arc<$kind>, )* }

        impl Catalogue {
            pub(super) fn new($mode: Mode) -> (Self, Vec<Arc<dyn Family>>) {
                let mut shelf = Shelf::default();
                let catalogue = Self { $( $field: {
                    shelf.put($mode.shows($name), $kind::new($name, $help, $labels $(, $bounds)?))
                }, )* };
                (catalogue, shelf.0)
            }

            #[cfg(test)]
            pub(super) fn touch_all(&self) {
                $( touch::$kind(&self.$field, $labels); )*
            }
        }
    };
}

catalogue! { |mode|
    /// Answers of `/healthz` by code.
    healthz: Counters,
        "kubeproxy_proxy_healthz_total", "Cumulative proxy healthz HTTP status", &["code"];
    /// Answers of `/livez` by code.
    livez: Counters,
        "kubeproxy_proxy_livez_total", "Cumulative proxy livez HTTP status", &["code"];

    /// Every sync, good or bad.
    sync_duration: Histograms,
        "kubeproxy_sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds",
        FAMILY, exponential_from(0.001, 15);
    /// Syncs that looked at everything.
    full_sync_duration: Histograms,
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "SyncProxyRules latency in seconds for full resyncs", FAMILY, exponential_from(0.001, 15);
    /// Syncs that looked at what had changed.
    partial_sync_duration: Histograms,
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "SyncProxyRules latency in seconds for partial resyncs", FAMILY, exponential_from(0.001, 15);
    /// When everything known was last in force.
    last_sync: Gauges,
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "The last time proxy rules were successfully synced", FAMILY;
    /// When a sync was last asked for.
    last_queued: Gauges,
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "The last time a sync of proxy rules was queued", FAMILY;
    /// From the change in the cluster to its being in force.
    network_programming: Histograms,
        "kubeproxy_network_programming_duration_seconds",
        "In Cluster Network Programming Latency in seconds", FAMILY, network_programming_bounds();

    /// Slices changed and not yet picked up.
    endpoint_changes_pending: Gauges,
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes", &[];
    /// Slice changes seen.
    endpoint_changes: Counters,
        "kubeproxy_sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes", &[];
    /// Services changed and not yet picked up.
    service_changes_pending: Gauges,
        "kubeproxy_sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes", &[];
    /// Service changes seen, once per family.
    service_changes: Counters,
        "kubeproxy_sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes", &[];
    /// Service ports whose Local policy finds nothing here.
    no_local_endpoints: Gauges,
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Number of services with a Local traffic policy and no endpoints", &["traffic_policy", "ip_family"];

    /// Syncs whose writing failed, under the mode's own name.
    sync_failures: Counters,
        mode.metrics.sync_failures.0, mode.metrics.sync_failures.1, FAMILY;
    /// Syncs of a part that failed (iptables).
    partial_restore_failures: Counters,
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        "Cumulative proxy iptables partial restore failures", FAMILY;
    /// Stale objects that could not be removed (nftables).
    cleanup_failures: Counters,
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "Cumulative proxy nftables cleanup failures", FAMILY;
    /// Rules owned (iptables).
    rules: Gauges,
        "kubeproxy_sync_proxy_rules_iptables_total",
        "Total number of iptables rules owned by kube-proxy", &["table", "ip_family"];
    /// Rules written last (iptables).
    rules_last: Gauges,
        "kubeproxy_sync_proxy_rules_iptables_last",
        "Number of iptables rules written by kube-proxy in last sync", &["table", "ip_family"];

    /// How long looking for stale flows took.
    conntrack_duration: Histograms,
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "ReconcileConntrackFlowsLatency latency in seconds", FAMILY, exponential_from(0.001, 15);
    /// Stale flows removed.
    conntrack_deleted: Counters,
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "Cumulative conntrack flows deleted by conntrack reconciler", FAMILY;
    /// Times that stale flows could not be looked for or removed.
    conntrack_failures: Counters,
        "ferry_conntrack_failures_total",
        "Times that stale connection-tracking entries could not be looked for or removed", FAMILY;

    /// Objects not served.
    skipped: Gauges,
        "ferry_skipped_objects",
        "Objects, or parts of them, that are not served because they are not valid", &[];
    /// Times that somebody else's change was put right.
    repairs: Counters,
        "ferry_repairs_total", "Times that rules changed by somebody else were put right", FAMILY;
    /// How long the parts of a sync took.
    sync_phase: Histograms,
        "ferry_sync_phase_duration_seconds", "How long each part of a sync took",
        &["phase"], exponential_from(0.000_01, 20);
    /// Kernel objects written.
    written: Counters,
        "ferry_kernel_objects_written_total", "Rules, set elements and the like that were written", FAMILY;
    /// Kernel objects removed.
    removed: Counters,
        "ferry_kernel_objects_removed_total", "Rules, set elements and the like that were removed", FAMILY;
    /// Services planned.
    services: Gauges, "ferry_services", "Services that are served", &[];
    /// Service ports planned.
    ports: Gauges, "ferry_service_ports", "Service ports that are served", FAMILY;
    /// Endpoints planned.
    endpoints: Gauges, "ferry_endpoints", "Known endpoints of all service ports", FAMILY;
    /// Changed configurations that were refused.
    config_refused: Counters,
        "ferry_config_refused_total",
        "Changed configuration files that were not valid and therefore not taken", &[];
    /// Events that could not be delivered.
    events_lost: Counters,
        "ferry_events_lost_total", "Events that could not be delivered to the API server", &[];
}

/// `count` bounds, each twice the one before.
fn exponential_from(first: f64, count: i32) -> Vec<f64> {
    // Rounded to a nanosecond, as products of 0.001 and a power of two print badly.
    (0..count)
        .map(|i| (first * 2f64.powi(i) * 1e9).round() / 1e9)
        .collect()
}

/// Fine where clusters should be, coarser where they should not.
fn network_programming_bounds() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod touch {
    pub(super) fn Counters(family: &super::Counters, labels: &[&str]) {
        family.increment(&vec![""; labels.len()]);
    }

    pub(super) fn Gauges(family: &super::Gauges, labels: &[&str]) {
        family.set(&vec![""; labels.len()], 1.0);
    }

    pub(super) fn Histograms(family: &super::Histograms, labels: &[&str]) {
        family.observe(&vec![""; labels.len()], 1.0);
    }
}
