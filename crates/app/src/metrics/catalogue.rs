//! The list of metrics: one line of name, one of help.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::vector::{Scraped, Value, Vector};
use super::{
    Counters, Family, Gauges, Histograms, ScrapedCounters, ScrapedGauges, ScrapedHistograms, Stability,
};
use crate::modes::Mode;

const FAMILY: &[&str] = &["ip_family"];
const SERVICE: &[&str] = &["namespace", "service", "port", "protocol", "ip_family"];
const REQUEST: &[&str] = &["host", "verb"];

/// What a scrape shows.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The families that count.
    pub(super) families: Vec<Arc<dyn Family>>,
    /// How many families there are, by what is promised of them.
    pub(super) by_stability: BTreeMap<Stability, usize>,
}

/// A kind of metric that the catalogue can declare.
trait Declared: Sized + 'static {
    /// Lets a scrape show it by itself.
    fn show(_family: &Arc<Self>, _shown: &mut Shown) {}
}

impl<V: Value + 'static> Declared for Vector<V> {
    fn show(family: &Arc<Self>, shown: &mut Shown) {
        shown.families.push(Arc::clone(family) as Arc<dyn Family>);
    }
}

// Written by whoever reads the values.
impl<V: Value + 'static> Declared for Scraped<V> {}

impl Shown {
    fn declare<F: Declared>(&mut self, belongs: bool, stability: Stability, family: F) -> Arc<F> {
        let family = Arc::new(family);
        // One that belongs to another mode can still be counted; nobody sees it.
        if belongs {
            *self.by_stability.entry(stability).or_default() += 1;
            F::show(&family, self);
        }
        family
    }
}

/// What a metric is, for people who look it up.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub name: &'static str,
    /// As Prometheus calls it.
    pub kind: &'static str,
    pub help: &'static str,
    pub labels: &'static [&'static str],
}

/// What Prometheus calls a kind of the catalogue.
fn kind_of(kind: &str) -> &'static str {
    match kind.trim_start_matches("Scraped") {
        "Counters" => "counter",
        "Histograms" => "histogram",
        _ => "gauge",
    }
}

/// What is promised of a metric that does not say so.
macro_rules! stability {
    () => {
        Stability::Alpha
    };
    ($stability:ident) => {
        Stability::$stability
    };
}

/// Declares the struct, its constructor and, for tests, a way to touch every family.
macro_rules! catalogue {
    (|$mode:ident| $( $(#[$doc:meta])* $field:ident: $kind:ident $([$stability:ident])?,
        $name:expr, $help:expr, $labels:expr $(, $bounds:expr)?; )*) => {
        /// Every counter, gauge and histogram by the name that the code has for it.
        #[derive(Debug)]
        pub struct Catalogue { $( $(#[$doc])* pub $field: Arc<$kind>, )* }

        impl Catalogue {
            pub(super) fn new($mode: Mode) -> (Self, Shown) {
                let mut shown = Shown::default();
                let catalogue = Self { $( $field: {
                    let stability = stability!($($stability)?);
                    let family = $kind::new($name, stability, $help, $labels $(, $bounds)?);
                    shown.declare($mode.shows($name), stability, family)
                }, )* };
                (catalogue, shown)
            }

            /// What a mode shows, for the reference.
            pub fn entries($mode: Mode) -> Vec<Entry> {
                let all = vec![$( Entry {
                    name: $name,
                    kind: kind_of(stringify!($kind)),
                    help: $help,
                    labels: $labels,
                }, )*];
                all.into_iter().filter(|entry| $mode.shows(entry.name)).collect()
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

    /// New connections by service port.
    service_connections: ScrapedCounters,
        "ferry_service_connections_total", "New connections by service port", SERVICE;
    /// New connections by endpoint.
    endpoint_connections: ScrapedCounters,
        "ferry_endpoint_connections_total", "New connections by service port and endpoint",
        &["namespace", "service", "port", "protocol", "ip_family", "endpoint"];
    /// Bytes relayed.
    service_bytes: ScrapedCounters,
        "ferry_service_bytes_total", "Bytes relayed by service port, to endpoints and back",
        &["namespace", "service", "port", "protocol", "ip_family", "direction"];
    /// Connections through the relay now.
    open_connections: ScrapedGauges,
        "ferry_service_open_connections",
        "Connections and UDP associations open through the relay, by service port", SERVICE;
    /// Connections that the relay could not pass on.
    failed_connections: ScrapedCounters,
        "ferry_service_failed_connections_total",
        "Connections for which no endpoint answered, by service port", SERVICE;
    /// Connections that the relay may not pass on.
    refused_connections: ScrapedCounters,
        "ferry_service_refused_connections_total",
        "Connections and datagrams turned away by policy in the relay, by service port", SERVICE;

    /// Requests to the API server.
    requests: ScrapedCounters,
        "rest_client_requests_total",
        "Number of HTTP requests, partitioned by status code, method, and host.", &["code", "host", "method"];
    /// How long the answers took.
    request_duration: ScrapedHistograms,
        "rest_client_request_duration_seconds",
        "Request latency in seconds. Broken down by verb, and host.", REQUEST;
    /// How long requests waited for their turn.
    rate_limiter_duration: ScrapedHistograms,
        "rest_client_rate_limiter_duration_seconds",
        "Client side rate limiter latency in seconds. Broken down by verb, and host.", REQUEST;
    /// How large requests were.
    request_size: ScrapedHistograms,
        "rest_client_request_size_bytes",
        "Request size in bytes. Broken down by verb and host.", REQUEST;
    /// How large answers were, unpacked.
    response_size: ScrapedHistograms,
        "rest_client_response_size_bytes",
        "Response size in bytes. Broken down by verb and host.", REQUEST;
    /// The clients there are: one.
    transports: ScrapedGauges,
        "rest_client_transport_cache_entries",
        "Number of transport entries in the internal cache.", &[];
    /// How often a client was asked for.
    transports_created: ScrapedCounters,
        "rest_client_transport_create_calls_total",
        "Number of calls to get a new transport, partitioned by the result of the operation hit: obtained from the \
         cache, miss: created and added to the cache, uncacheable: created and not cached", &["result"];
    /// How long the certificate of a credential plugin is still good.
    plugin_ttl: ScrapedGauges,
        "rest_client_exec_plugin_ttl_seconds",
        "Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. The \
         value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused \
         or manage no TLS certificates, the value will be +INF.", &[];
    /// What became of the runs of a credential plugin.
    plugin_calls: ScrapedCounters,
        "rest_client_exec_plugin_call_total",
        "Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, \
         plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit \
         code will be set to 0 if and only if the plugin call was successful.", &["call_status", "code"];
    /// How old the certificate of a credential plugin was when it was replaced.
    plugin_rotation_age: ScrapedHistograms,
        "rest_client_exec_plugin_certificate_rotation_age",
        "Histogram of the number of seconds the last auth exec plugin client certificate lived before being rotated. \
         If auth exec plugin client certificates are unused, histogram will contain no data.", &[];

    /// Which program this is.
    build_info: ScrapedGauges [Beta],
        "kubernetes_build_info",
        "Always 1; the labels say which Kubernetes release is spoken and what was built.",
        &["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major",
            "minor", "platform"];
    /// Feature gates.
    feature_enabled: ScrapedGauges [Beta],
        "kubernetes_feature_enabled", "Whether a Kubernetes feature is on, 1 for yes.", &["name", "stage"];
    /// Families of this list.
    registered: ScrapedCounters [Beta],
        "registered_metrics_total", "Metrics that exist, by stability and by the version that deprecated them.",
        &["deprecated_version", "stability_level"];
    /// Families that the operator has switched off: that cannot be done here.
    disabled: Counters [Beta],
        "disabled_metrics_total", "Metrics that are switched off.", &[];
    /// Deprecated families that are not shown: there are none.
    hidden: Counters [Beta],
        "hidden_metrics_total", "Deprecated metrics that are not shown.", &[];
    /// Label values outside a list of allowed ones: there are no such lists.
    unexpected_categorizations: Counters,
        "cardinality_enforcement_unexpected_categorizations_total",
        "Times that a label had a value outside of what is allowed.", &[];

    /// User and system CPU time.
    process_cpu: ScrapedCounters [Unstated],
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", &[];
    /// The limit on open files.
    process_max_files: ScrapedGauges [Unstated],
        "process_max_fds", "Maximum number of open file descriptors.", &[];
    /// Open files.
    process_open_files: ScrapedGauges [Unstated],
        "process_open_fds", "Number of open file descriptors.", &[];
    /// Bytes received in this network namespace.
    process_received: ScrapedCounters [Unstated],
        "process_network_receive_bytes_total", "Number of bytes received by the process over the network.", &[];
    /// Bytes sent in this network namespace.
    process_transmitted: ScrapedCounters [Unstated],
        "process_network_transmit_bytes_total", "Number of bytes sent by the process over the network.", &[];
    /// Memory in use.
    process_resident: ScrapedGauges [Unstated],
        "process_resident_memory_bytes", "Resident memory size in bytes.", &[];
    /// When it started.
    process_start: ScrapedGauges [Unstated],
        "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", &[];
    /// Addresses in use.
    process_virtual: ScrapedGauges [Unstated],
        "process_virtual_memory_bytes", "Virtual memory size in bytes.", &[];
    /// The limit on them.
    process_max_virtual: ScrapedGauges [Unstated],
        "process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.", &[];
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

    // These have values only where they are read.
    pub(super) fn ScrapedCounters(_: &super::ScrapedCounters, _: &[&str]) {}
    pub(super) fn ScrapedGauges(_: &super::ScrapedGauges, _: &[&str]) {}
    pub(super) fn ScrapedHistograms(_: &super::ScrapedHistograms, _: &[&str]) {}
}
