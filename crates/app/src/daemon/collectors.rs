//! Metrics that are read at scrape time, each from where it is counted.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use ferry_backends::Traffic;
use ferry_host::nfacct::Nfacct;
use ferry_model::Family;
use ferry_sources::Mailbox;
use ferry_sources::kube::{Histogram, Measure, PluginUse, Requests};

use super::source::Following;
use crate::config::Settings;
use crate::metrics::{Buckets, Build, Catalogue, Count, Level, Metrics, ScrapedCounters, Stability, Text};
use crate::sync::Signal;

/// More series than these would hurt whoever scrapes.
const MAX_SERIES: usize = 10_000;
/// How long a scrape waits for a loop that is busy.
const LOOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What the metrics tell about the program and its feature gates.
pub(super) fn build(settings: &Settings) -> Build {
    let features = settings.gates.all();
    let features = features.map(|(name, stage, on)| (name.to_owned(), stage.to_owned(), on));
    Build {
        features: features.collect(),
    }
}

/// Adds everything that is counted outside the loop.
pub(super) fn register(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    mailbox: &Arc<Mailbox>,
    families: &BTreeSet<Family>,
    following: &Following,
    signal: &Arc<Signal>,
) {
    changes(metrics, mailbox, families.len());
    if let Following::Api(api) = following {
        let (requests, host) = (Arc::clone(api.requests()), host_of(api.server()));
        metrics.collect_with(move |metrics, text| write_requests(metrics, text, &requests, &host));
    }
    accounting(metrics, settings.mode.metrics.packets);
    // A relay counts whether anybody asks or not.
    if settings.traffic_counters || settings.mode.relays {
        let signal = Arc::clone(signal);
        metrics.collect_with(move |metrics, text| {
            if let Some(traffic) = ask_traffic(&signal) {
                write_traffic(metrics, text, &traffic);
            }
        });
    }
}

/// Service changes count once per family, as in kube-proxy.
fn changes(metrics: &Metrics, mailbox: &Arc<Mailbox>, families: usize) {
    let mailbox = Arc::clone(mailbox);
    metrics.collect_with(move |metrics, _| {
        let counts = mailbox.counts();
        let services = (counts.service_changes * families as u64) as f64;
        metrics.service_changes.set(&[], services);
        metrics
            .service_changes_pending
            .set(&[], counts.service_changes_pending as f64);
        metrics.endpoint_changes.set(&[], counts.endpoint_changes as f64);
        metrics
            .endpoint_changes_pending
            .set(&[], counts.endpoint_changes_pending as f64);
    });
}

/// The part of the server's URL that the metrics call its host.
fn host_of(server: &str) -> String {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default().to_owned()
}

fn write_requests(metrics: &Catalogue, text: &mut Text, requests: &Requests, host: &str) {
    let counts = requests.counts();
    let counts = counts
        .iter()
        .map(|row| (vec![&row.code, host, &row.method], Count(row.count as f64)));
    metrics.requests.write(text, counts);
    for measure in Measure::ALL {
        let family = match measure {
            Measure::Duration => &metrics.request_duration,
            Measure::RateLimit => &metrics.rate_limiter_duration,
            Measure::RequestSize => &metrics.request_size,
            Measure::ResponseSize => &metrics.response_size,
        };
        let rows = requests.measured(measure);
        let rows = rows
            .iter()
            .map(|(method, row)| (vec![host, method], buckets(row)));
        family.write(text, rows);
    }
    metrics.transports.write_one(text, Level(1.0));
    metrics
        .transports_created
        .write(text, [(vec!["miss"], Count(1.0))]);
    write_plugin(metrics, text, &requests.plugin_use());
}

fn buckets(histogram: &Histogram) -> Buckets {
    Buckets::counted(histogram.bounds, histogram.buckets.clone(), histogram.sum)
}

fn write_plugin(metrics: &Catalogue, text: &mut Text, plugin: &PluginUse) {
    let left = plugin.certificate_expires.map_or(f64::INFINITY, |expires| {
        match expires.duration_since(SystemTime::now()) {
            Ok(left) => left.as_secs_f64(),
            Err(ago) => -ago.duration().as_secs_f64(),
        }
    });
    metrics.plugin_ttl.write_one(text, Level(left));
    let calls = [
        (vec!["no_error", "0"], plugin.successes),
        (vec!["plugin_execution_error", "1"], plugin.failures),
    ];
    let calls = calls.into_iter().filter(|(_, count)| *count > 0);
    metrics
        .plugin_calls
        .write(text, calls.map(|(labels, count)| (labels, Count(count as f64))));
    metrics
        .plugin_rotation_age
        .write_one(text, buckets(&plugin.rotation_age));
}

/// Packets that rules with an accounting object have matched; only where the kernel has such objects.
fn accounting(metrics: &Metrics, packets: &[(&'static str, &'static str, &'static str)]) {
    if packets.is_empty() {
        return;
    }
    match Nfacct::open() {
        Ok(Some(_)) => {}
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(err = %error, "No packet accounting in this kernel");
            return;
        }
    }
    let declare = |&(object, name, help)| (object, ScrapedCounters::new(name, Stability::Alpha, help, &[]));
    let families: Vec<(&str, ScrapedCounters)> = packets.iter().map(declare).collect();
    metrics.collect_with(move |_, text| {
        let Ok(Some(mut nfacct)) = Nfacct::open() else {
            return;
        };
        for (object, family) in &families {
            match nfacct.get(object) {
                Ok(Some(count)) => family.write_one(text, Count(count.packets as f64)),
                Ok(None) => {}
                Err(error) => tracing::error!(object, err = %error, "Can't read a packet count"),
            }
        }
    });
}

/// The backend is the loop's, so the loop is asked; one that is busy for long is not waited for.
pub(super) fn ask_traffic(signal: &Signal) -> Option<Vec<Traffic>> {
    let (tell, told) = mpsc::channel();
    signal.ask(Box::new(move |_, backend| {
        let _ = tell.send(backend.traffic());
    }));
    match told.recv_timeout(LOOP_TIMEOUT) {
        Ok(Ok(traffic)) => Some(traffic),
        Ok(Err(error)) => {
            tracing::error!(err = %error, "Can't read traffic counters");
            None
        }
        Err(_) => None,
    }
}

fn write_traffic(metrics: &Catalogue, text: &mut Text, traffic: &[Traffic]) {
    let services = || {
        traffic
            .iter()
            .filter(|row| row.endpoint.is_none())
            .take(MAX_SERIES)
    };
    metrics.service_connections.write(
        text,
        services().map(|row| (labels(row, None), Count(row.connections as f64))),
    );
    let endpoints = traffic
        .iter()
        .filter_map(|row| Some((row, row.endpoint?.to_string())))
        .take(MAX_SERIES);
    metrics.endpoint_connections.write(
        text,
        endpoints.map(|(row, endpoint)| (labels(row, Some(&endpoint)), Count(row.connections as f64))),
    );
    let bytes = services()
        .filter_map(|row| Some((row, row.bytes?)))
        .flat_map(|(row, (forth, back))| [(row, "to_endpoint", forth), (row, "to_client", back)]);
    metrics.service_bytes.write(
        text,
        bytes.map(|(row, direction, bytes)| (labels(row, Some(direction)), Count(bytes as f64))),
    );
    let relayed = || services().filter_map(|row| Some((labels(row, None), row.relayed?)));
    let open = relayed().map(|(labels, relayed)| (labels, Level(relayed.open as f64)));
    metrics.open_connections.write(text, open);
    let failed = relayed().map(|(labels, relayed)| (labels, Count(relayed.failed as f64)));
    metrics.failed_connections.write(text, failed);
    let refused = relayed().map(|(labels, relayed)| (labels, Count(relayed.refused as f64)));
    metrics.refused_connections.write(text, refused);
}

/// The values of the labels that name a service port, and one more where there is one.
fn labels(row: &Traffic, more: Option<&str>) -> Vec<String> {
    let labels = [
        row.port.service.namespace(),
        row.port.service.name(),
        &row.port.port,
        row.port.protocol.as_str(),
        row.family.as_str(),
    ];
    labels.into_iter().chain(more).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::Mode;
    use ferry_backends::Relayed;
    use ferry_model::{PortName, Protocol, ServiceName};

    fn row(name: &str, endpoint: Option<&str>, bytes: Option<(u64, u64)>) -> Traffic {
        Traffic {
            family: Family::V4,
            port: PortName {
                service: ServiceName::new("ns", name),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
            connections: 7,
            bytes,
            relayed: bytes.map(|_| Relayed {
                open: 3,
                failed: 4,
                refused: 5,
            }),
        }
    }

    fn metrics() -> Metrics {
        Metrics::new(Mode::named("userspace").unwrap(), Build::default())
    }

    #[test]
    fn traffic_is_told_by_service_and_endpoint() {
        let mut text = Text::default();
        write_traffic(
            &metrics(),
            &mut text,
            &[
                row("web", None, Some((1, 2))),
                row("web", Some("10.0.0.1:80"), None),
            ],
        );
        let labels = "namespace=\"ns\",service=\"web\",port=\"http\",protocol=\"tcp\",ip_family=\"IPv4\"";
        let text = text.finish();
        for line in [
            format!("ferry_service_connections_total{{{labels}}} 7"),
            format!("ferry_endpoint_connections_total{{{labels},endpoint=\"10.0.0.1:80\"}} 7"),
            format!("ferry_service_bytes_total{{{labels},direction=\"to_endpoint\"}} 1"),
            format!("ferry_service_bytes_total{{{labels},direction=\"to_client\"}} 2"),
            format!("ferry_service_open_connections{{{labels}}} 3"),
            format!("ferry_service_failed_connections_total{{{labels}}} 4"),
            format!("ferry_service_refused_connections_total{{{labels}}} 5"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let rows: Vec<Traffic> = (0..MAX_SERIES + 5)
            .map(|i| row(&format!("s{i}"), None, None))
            .collect();
        let mut text = Text::default();
        write_traffic(&metrics(), &mut text, &rows);
        assert_eq!(text.finish().lines().count(), MAX_SERIES + 2);
    }

    #[test]
    fn requests_are_told_as_client_go_tells_them() {
        let requests = Requests::default();
        requests.note("GET", Some(200), Duration::from_millis(5));
        requests.note("POST", None, Duration::from_secs(100));
        let mut text = Text::default();
        write_requests(
            &metrics(),
            &mut text,
            &requests,
            &host_of("https://10.0.0.1:6443/prefix"),
        );
        let text = text.finish();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",host=\"10.0.0.1:6443\",method=\"POST\"} 1",
            "rest_client_request_duration_seconds_bucket{host=\"10.0.0.1:6443\",verb=\"GET\",le=\"0.005\"} 1",
            "rest_client_request_duration_seconds_bucket{host=\"10.0.0.1:6443\",verb=\"POST\",le=\"60\"} 0",
            "rest_client_request_duration_seconds_count{host=\"10.0.0.1:6443\",verb=\"POST\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
