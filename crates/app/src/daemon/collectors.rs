//! Metrics that are read at scrape time, each from where it is counted.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ferry_backends::{Relayed, Traffic};
use ferry_host::nfacct::Nfacct;
use ferry_model::Family;
use ferry_sources::Mailbox;
use ferry_sources::kube::{REQUEST_SECONDS, Requests};

use super::source::Following;
use crate::config::Settings;
use crate::metrics::{Build, Kind, Metrics, Text};
use crate::sync::Signal;

/// More series than these would hurt whoever scrapes.
const MOST_SERIES: usize = 10_000;
/// How long a scrape waits for a loop that is busy.
const PATIENCE: Duration = Duration::from_secs(2);

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
        metrics.collect_with(move |text| write_requests(text, &requests, &host));
    }
    accounting(metrics, settings.mode.metrics.packets);
    // A relay counts whether anybody asks or not.
    if settings.traffic_counters || settings.mode.relays {
        let signal = Arc::clone(signal);
        metrics.collect_with(move |text| {
            if let Some(traffic) = ask_traffic(&signal) {
                write_traffic(text, &traffic);
            }
        });
    }
}

/// Service changes count once per family, as in kube-proxy.
fn changes(metrics: &Metrics, mailbox: &Arc<Mailbox>, families: usize) {
    let mailbox = Arc::clone(mailbox);
    let services = Arc::clone(&metrics.service_changes);
    let services_pending = Arc::clone(&metrics.service_changes_pending);
    let endpoints = Arc::clone(&metrics.endpoint_changes);
    let endpoints_pending = Arc::clone(&metrics.endpoint_changes_pending);
    metrics.collect_with(move |_| {
        let counts = mailbox.counts();
        services.set(&[], (counts.service_changes * families as u64) as f64);
        services_pending.set(&[], counts.service_changes_pending as f64);
        endpoints.set(&[], counts.endpoint_changes as f64);
        endpoints_pending.set(&[], counts.endpoint_changes_pending as f64);
    });
}

/// The part of the server's URL that the metrics call its host.
fn host_of(server: &str) -> String {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default().to_owned()
}

fn write_requests(text: &mut Text, requests: &Requests, host: &str) {
    let name = "rest_client_requests_total";
    let help = "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.";
    text.family(name, Kind::Counter, help);
    for count in requests.counts() {
        let labels = [
            ("code", count.code.as_str()),
            ("host", host),
            ("method", count.method.as_str()),
        ];
        text.sample(name, labels, count.count as f64);
    }
    let name = "rest_client_request_duration_seconds";
    text.family(
        name,
        Kind::Histogram,
        "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
    );
    for times in requests.times() {
        let labels = [("host", host), ("verb", times.method.as_str())];
        let bounds = REQUEST_SECONDS
            .iter()
            .map(|bound| bound.to_string())
            .chain(["+Inf".to_owned()]);
        let mut total = 0;
        for (bound, count) in bounds.zip(times.buckets) {
            total += count;
            let labels = labels.into_iter().chain([("le", bound.as_str())]);
            text.sample(
                "rest_client_request_duration_seconds_bucket",
                labels,
                total as f64,
            );
        }
        text.sample(
            "rest_client_request_duration_seconds_sum",
            labels,
            times.sum.as_secs_f64(),
        );
        text.sample("rest_client_request_duration_seconds_count", labels, total as f64);
    }
}

/// Packets that rules with an accounting object have matched; only where the kernel has such objects.
fn accounting(metrics: &Metrics, packets: &'static [(&str, &str, &str)]) {
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
    metrics.collect_with(move |text| {
        let Ok(Some(mut nfacct)) = Nfacct::open() else {
            return;
        };
        for (object, name, help) in packets {
            match nfacct.get(object) {
                Ok(Some(count)) => {
                    text.family(name, Kind::Counter, help);
                    text.sample(name, [], count.packets as f64);
                }
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
    match told.recv_timeout(PATIENCE) {
        Ok(Ok(traffic)) => Some(traffic),
        Ok(Err(error)) => {
            tracing::error!(err = %error, "Can't read traffic counters");
            None
        }
        Err(_) => None,
    }
}

fn write_traffic(text: &mut Text, traffic: &[Traffic]) {
    let services: Vec<&Traffic> = traffic
        .iter()
        .filter(|t| t.endpoint.is_none())
        .take(MOST_SERIES)
        .collect();
    let endpoints: Vec<&Traffic> = traffic
        .iter()
        .filter(|t| t.endpoint.is_some())
        .take(MOST_SERIES)
        .collect();
    write_connections(
        text,
        "ferry_service_connections_total",
        "[ALPHA] New connections by service port",
        &services,
    );
    write_connections(
        text,
        "ferry_endpoint_connections_total",
        "[ALPHA] New connections by service port and endpoint",
        &endpoints,
    );
    write_bytes(text, &services);
    write_relayed(text, &services);
}

fn write_connections(text: &mut Text, name: &str, help: &str, rows: &[&Traffic]) {
    if rows.is_empty() {
        return;
    }
    text.family(name, Kind::Counter, help);
    for row in rows {
        let endpoint = row.endpoint.map(|endpoint| endpoint.to_string());
        let labels = labels(row)
            .into_iter()
            .chain(endpoint.as_deref().map(|e| ("endpoint", e)));
        text.sample(name, labels, row.connections as f64);
    }
}

fn write_bytes(text: &mut Text, rows: &[&Traffic]) {
    let mut counted = rows.iter().filter_map(|row| Some((row, row.bytes?))).peekable();
    if counted.peek().is_none() {
        return;
    }
    let name = "ferry_service_bytes_total";
    text.family(
        name,
        Kind::Counter,
        "[ALPHA] Bytes relayed by service port, to endpoints and back",
    );
    for (row, (forth, back)) in counted {
        for (direction, bytes) in [("to_endpoint", forth), ("to_client", back)] {
            let labels = labels(row).into_iter().chain([("direction", direction)]);
            text.sample(name, labels, bytes as f64);
        }
    }
}

fn write_relayed(text: &mut Text, rows: &[&Traffic]) {
    type Pick = fn(&Relayed) -> u64;
    let families: [(&str, Kind, &str, Pick); 3] = [
        (
            "ferry_service_open_connections",
            Kind::Gauge,
            "[ALPHA] Connections and UDP associations open through the relay, by service port",
            |relayed| relayed.open,
        ),
        (
            "ferry_service_failed_connections_total",
            Kind::Counter,
            "[ALPHA] Connections for which no endpoint answered, by service port",
            |relayed| relayed.failed,
        ),
        (
            "ferry_service_refused_connections_total",
            Kind::Counter,
            "[ALPHA] Connections and datagrams turned away by policy in the relay, by service port",
            |relayed| relayed.refused,
        ),
    ];
    let relayed: Vec<(&Traffic, Relayed)> =
        rows.iter().filter_map(|row| Some((*row, row.relayed?))).collect();
    if relayed.is_empty() {
        return;
    }
    for (name, kind, help, pick) in families {
        text.family(name, kind, help);
        for (row, relayed) in &relayed {
            text.sample(name, labels(row), pick(relayed) as f64);
        }
    }
}

fn labels(row: &Traffic) -> [(&str, &str); 5] {
    [
        ("namespace", row.port.service.namespace()),
        ("service", row.port.service.name()),
        ("port", &row.port.port),
        ("protocol", row.port.protocol.as_str()),
        ("ip_family", row.family.as_str()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn traffic_is_told_by_service_and_endpoint() {
        let mut text = Text::default();
        write_traffic(
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
        let rows: Vec<Traffic> = (0..MOST_SERIES + 5)
            .map(|i| row(&format!("s{i}"), None, None))
            .collect();
        let mut text = Text::default();
        write_traffic(&mut text, &rows);
        assert_eq!(text.finish().lines().count(), MOST_SERIES + 2);
    }

    #[test]
    fn requests_are_told_as_client_go_tells_them() {
        let requests = Requests::default();
        requests.note("GET", Some(200), Duration::from_millis(5));
        requests.note("POST", None, Duration::from_secs(100));
        let mut text = Text::default();
        write_requests(&mut text, &requests, &host_of("https://10.0.0.1:6443/prefix"));
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
