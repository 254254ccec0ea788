//! What the daemon counts, under kube-proxy's names where it has one, else as `ferry_*`.
//! Touches nothing but memory and, at scrape time, `/proc`.
//! Names, types, labels and buckets never change: dashboards and alerts are built on them.
//!
//! The families are our own rather than `prometheus-client`'s, which writes OpenMetrics only: there a counter's
//! family loses its `_total` and a gauge may not be called `..._total`, so kube-proxy's names cannot come out.

mod build;
mod catalogue;
mod process;
mod text;
mod vector;

pub use build::{Build, architecture};
pub use catalogue::Catalogue;
use catalogue::Shown;
pub use text::{Exemplar, Format, Kind, Text};
pub use vector::{
    Buckets, Count, Counters, Family, Gauges, Histograms, Level, ScrapedCounters, ScrapedGauges,
    ScrapedHistograms, Stability,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::modes::Mode;

/// Every metric of the daemon; counts are reached through the [`Catalogue`] that this derefs to.
#[derive(Debug)]
pub struct Metrics {
    catalogue: Catalogue,
    shown: Shown,
    sli_checks: Counters,
    sli_state: Gauges,
    collectors: Collectors,
    build: Build,
}

impl std::ops::Deref for Metrics {
    type Target = Catalogue;

    fn deref(&self) -> &Catalogue {
        &self.catalogue
    }
}

type Collector = Box<dyn Fn(&Catalogue, &mut Text) + Send + Sync>;

/// Values that are read when asked for, such as kernel counters.
#[derive(Default)]
struct Collectors(Mutex<Vec<Collector>>);

impl std::fmt::Debug for Collectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Collectors")
    }
}

impl Metrics {
    /// The metrics of a daemon in this mode.
    pub fn new(mode: Mode, build: Build) -> Self {
        let (catalogue, mut shown) = Catalogue::new(mode);
        shown.families.sort_by(|a, b| a.name().cmp(b.name()));
        let sli_checks = Counters::new(
            "kubernetes_healthchecks_total",
            Stability::Stable,
            "Results of all health checks",
            &["name", "status", "type"],
        );
        let sli_state = Gauges::new(
            "kubernetes_healthcheck",
            Stability::Stable,
            "Result of a health check, 1 if it passed",
            &["name", "type"],
        );
        sli_state.set(&["ping", "healthz"], 1.0);
        Self {
            catalogue,
            shown,
            sli_checks,
            sli_state,
            collectors: Collectors::default(),
            build,
        }
    }

    /// Adds values that are read at each scrape.
    pub fn collect_with(&self, collector: impl Fn(&Catalogue, &mut Text) + Send + Sync + 'static) {
        self.collectors().push(Box::new(collector));
    }

    /// The body of `/metrics`.
    pub fn text(&self, format: Format) -> String {
        let mut text = Text::new(format);
        // First, as some of them bring families up to date.
        for collector in self.collectors().iter() {
            collector(self, &mut text);
        }
        for family in &self.shown.families {
            family.write(&mut text);
        }
        self.build.write(self, &mut text);
        let registered = self.shown.by_stability.iter();
        let registered = registered
            .filter_map(|(stability, count)| Some((vec!["", stability.as_str()?], Count(*count as f64))));
        self.registered.write(&mut text, registered);
        process::write(self, &mut text);
        text.finish()
    }

    /// Notes that the metrics server answered a health check.
    pub fn health_check_passed(&self) {
        self.sli_checks.increment(&["ping", "success", "healthz"]);
        self.sli_state.set(&["ping", "healthz"], 1.0);
    }

    /// The body of `/metrics/slis`.
    pub fn sli_text(&self, format: Format) -> String {
        let mut text = Text::new(format);
        self.sli_state.write(&mut text);
        self.sli_checks.write(&mut text);
        process::write_start(self, &mut text);
        text.finish()
    }

    /// Forgets what `/metrics/slis` has counted.
    pub fn reset_slis(&self) {
        self.sli_checks.reset();
        self.sli_state.reset();
    }

    // Collectors are only ever added whole, so a poisoned lock is still good.
    fn collectors(&self) -> MutexGuard<'_, Vec<Collector>> {
        self.collectors.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Vec<(String, String)> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types
            .map(|line| {
                line.split_once(' ')
                    .map(|(n, k)| (n.to_owned(), k.to_owned()))
                    .unwrap()
            })
            .collect()
    }

    /// Touches every labelled family, so that all are written.
    fn everything(mode: Mode) -> Vec<(String, String)> {
        let metrics = Metrics::new(mode, Build::default());
        metrics.touch_all();
        declared(&metrics.text(Format::Prometheus))
    }

    type Declared<'a> = &'a [(&'a str, &'a str)];

    const SHARED: Declared = &[
        ("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter"),
        (
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "histogram",
        ),
        ("kubeproxy_network_programming_duration_seconds", "histogram"),
        ("kubeproxy_proxy_healthz_total", "counter"),
        ("kubeproxy_proxy_livez_total", "counter"),
        ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter"),
        (
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "gauge",
        ),
        ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge"),
        ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "gauge"),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_service_changes_total", "counter"),
    ];
    const FULL_AND_PARTIAL: Declared = &[
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "histogram"),
    ];

    #[test]
    fn each_mode_shows_upstreams_families_and_no_other_modes() {
        let restore = [(
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "counter",
        )];
        let iptables = [
            ("kubeproxy_sync_proxy_rules_iptables_last", "gauge"),
            (
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "counter",
            ),
            ("kubeproxy_sync_proxy_rules_iptables_total", "gauge"),
        ];
        let nftables = [
            (
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                "counter",
            ),
            (
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "counter",
            ),
        ];
        let cases: [(Mode, Vec<Declared>); 3] = [
            (
                Mode::named("iptables").unwrap(),
                vec![SHARED, FULL_AND_PARTIAL, &restore, &iptables],
            ),
            (Mode::named("ipvs").unwrap(), vec![SHARED, &restore]),
            (
                Mode::named("nftables").unwrap(),
                vec![SHARED, FULL_AND_PARTIAL, &nftables],
            ),
        ];
        for (mode, expected) in cases {
            let mut expected: Vec<(String, String)> = expected
                .concat()
                .iter()
                .map(|(n, k)| (n.to_string(), k.to_string()))
                .collect();
            expected.sort();
            let mut shown = everything(mode);
            shown.retain(|(name, _)| name.starts_with("kubeproxy_"));
            assert_eq!(shown, expected, "{mode}");
        }
    }

    #[test]
    fn buckets_are_upstreams() {
        let metrics = Metrics::new(Mode::named("nftables").unwrap(), Build::default());
        metrics.touch_all();
        let text = metrics.text(Format::Prometheus);
        let bounds = |name: &str| -> Vec<String> {
            let prefix = format!("{name}_bucket{{ip_family=\"\",le=\"");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            lines
                .map(|rest| rest.split('"').next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(
            bounds("kubeproxy_sync_proxy_rules_duration_seconds").join(" "),
            "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf"
        );
        let programming = bounds("kubeproxy_network_programming_duration_seconds");
        assert_eq!(programming.len(), 2 + 59 + 12 + 7 + 1);
        assert_eq!(programming[..4].join(" "), "0.25 0.5 1 2");
        assert_eq!(programming[60..64].join(" "), "59 60 65 70");
        assert_eq!(
            programming[72..].join(" "),
            "115 120 150 180 210 240 270 300 +Inf"
        );
        assert!(text.contains(
            "# HELP kubeproxy_sync_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds\n"
        ));
    }

    #[test]
    fn process_and_build_are_told() {
        let text = Metrics::new(Mode::named("nftables").unwrap(), Build::default()).text(Format::Prometheus);
        for name in [
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_network_receive_bytes_total",
            "process_network_transmit_bytes_total",
            "process_virtual_memory_bytes",
            "process_virtual_memory_max_bytes",
            "disabled_metrics_total",
            "hidden_metrics_total",
        ] {
            assert!(text.contains(&format!("\n{name} ")), "{name}");
        }
        assert!(text.contains("major=\"1\",minor=\"36\""));
        assert!(text.contains("# HELP kubernetes_build_info [BETA] "));
        assert!(text.contains("# HELP process_max_fds Maximum"));
        for (stability, least) in [("ALPHA", 30), ("BETA", 5)] {
            let name = "registered_metrics_total";
            let series = format!("\n{name}{{deprecated_version=\"\",stability_level=\"{stability}\"}} ");
            let (_, count) = text.split_once(&series).unwrap();
            let count: usize = count.lines().next().unwrap().parse().unwrap();
            assert!(count >= least, "{stability}: {count}");
        }
    }

    #[test]
    fn every_sample_belongs_to_the_family_declared_before_it() {
        let metrics = Metrics::new(Mode::named("iptables").unwrap(), Build::default());
        metrics.touch_all();
        let mut family = String::new();
        let mut seen = std::collections::BTreeSet::new();
        for line in metrics.text(Format::Prometheus).lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(family.clone()), "{family} twice");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffix = name.strip_prefix(family.as_str());
                assert!(
                    matches!(suffix, Some("" | "_bucket" | "_sum" | "_count")),
                    "{line} under {family}"
                );
            }
        }
    }
}
