//! The pages. Pure.

use std::fmt::{self, Write};

use super::html::Text;
use super::map;
use crate::flows::FlowsReport;
use crate::history::HistoryReport;
use crate::status::{ServiceDetail, StatusReport, TraceReport};

/// So many services are listed at once; a filter finds the others.
const LISTED: usize = 500;
/// So many entries of the history of a service are shown with it.
const RECENT: usize = 30;

/// A page: what it is called, and what is on it.
pub(super) struct Page {
    title: String,
    body: String,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{} - ferry</title><link rel=\"stylesheet\" href=\"/ferry.css\">\
             <script src=\"/ferry.js\" defer></script>\
             <nav><a href=\"/\">services</a> <a href=\"/trace\">trace a packet</a> <a href=\"/history\">history</a>\
             <span id=\"live\"></span></nav><main><h1>{}</h1>{}</main></html>",
            Text(&self.title),
            Text(&self.title),
            self.body
        )
    }
}

/// Puts pieces of a page together. Writing to a String cannot fail.
macro_rules! put {
    ($body:expr, $($part:tt)*) => {
        let _ = write!($body, $($part)*);
    };
}

impl Page {
    pub(super) fn trouble(why: &str) -> Self {
        Self {
            title: "no answer".into(),
            body: format!("<p class=\"bad\">{}</p>", Text(why)),
        }
    }

    pub(super) fn services(status: &StatusReport, filter: Option<&str>) -> Self {
        let mut body = String::new();
        let StatusReport {
            version,
            mode,
            source,
            ..
        } = status;
        let up = crate::status::span(status.uptime_seconds as f64);
        put!(
            body,
            "<p>ferry {}, {} mode, up {up}; {}</p><table>",
            Text(version),
            Text(mode),
            Text(source)
        );
        for family in &status.families {
            let class = if family.error.is_some() { "bad" } else { "" };
            let text = family.to_string();
            put!(
                body,
                "<tr class=\"{class}\"><td><pre>{}</pre></td></tr>",
                Text(text.trim_end())
            );
        }
        body.push_str("</table>");
        for (class, lines) in [
            ("bad", &status.problems),
            ("bad", &status.skipped),
            ("", &status.notes),
        ] {
            for line in lines.iter().take(20) {
                put!(body, "<p class=\"{class}\">{}</p>", Text(line));
            }
        }
        let shown = filter.unwrap_or_default();
        put!(
            body,
            "<form action=\"/\"><input name=\"filter\" value=\"{}\" placeholder=\"name or address\" \
             aria-label=\"filter\"><button>filter</button></form>",
            Text(shown)
        );
        let rows = status.rows.as_deref().unwrap_or_default();
        let found: Vec<_> = rows
            .iter()
            .filter(|row| row.service.contains(shown) || row.address.contains(shown))
            .collect();
        body.push_str(
            "<table><thead><tr><th>service<th>address<th>endpoints<th>inside<th>outside<th>connections</thead>",
        );
        for row in found.iter().take(LISTED) {
            let name = row.service.split(':').next().unwrap_or_default();
            let class = if row.used == 0 { "bad" } else { "" };
            put!(
                body,
                "<tr class=\"{class}\"><td><a href=\"/service/{0}\">{1}</a><td>{2}<td>{3}/{4}<td>{5}<td>{6}<td>{7}</tr>",
                Text(name),
                Text(&row.service),
                Text(&row.address),
                row.used,
                row.known,
                Text(&row.internal),
                Text(row.external.as_deref().unwrap_or("-")),
                row.connections
                    .map_or_else(|| "-".into(), |count| count.to_string())
            );
        }
        body.push_str("</table>");
        match (status.rows.is_none(), found.len().saturating_sub(LISTED)) {
            (true, _) => body.push_str("<p>the daemon is busy with a long sync</p>"),
            (false, 0) => {}
            (false, more) => {
                put!(body, "<p>and {more} more: filter by name or address</p>");
            }
        }
        Self {
            title: format!("{} services on {}", status.services, status.node),
            body,
        }
    }

    pub(super) fn service(
        detail: &ServiceDetail,
        flows: Option<&FlowsReport>,
        history: &HistoryReport,
    ) -> Self {
        let mut body = String::new();
        let zone = detail
            .zone
            .as_deref()
            .map(|zone| format!(" in zone {zone}"))
            .unwrap_or_default();
        put!(body, "<p>seen from node {}{}</p>", Text(&detail.node), Text(zone));
        put!(body, "<div class=\"map\">{}</div>", map::draw(detail, flows));
        body.push_str("<h2>frontends</h2><table><thead><tr><th>at<th>kind<th>pods<th>node<th>others<th>only from</thead>");
        for port in &detail.service.ports {
            for frontend in &port.frontends {
                put!(
                    body,
                    "<tr><td>{}/{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
                    Text(&frontend.at),
                    Text(&port.protocol),
                    Text(&frontend.kind),
                    Text(&frontend.pods.action),
                    Text(&frontend.node.action),
                    Text(&frontend.others.action),
                    Text(frontend.allowed.join(", "))
                );
            }
        }
        body.push_str(
            "</table><h2>endpoints</h2><table><thead><tr><th>endpoint<th>state<th>node<th>for zone<th>pools<th>weight</thead>",
        );
        for endpoint in detail.service.ports.iter().flat_map(|port| &port.endpoints) {
            let place = detail.place(&endpoint.address);
            let pools = match (endpoint.in_cluster_pool, endpoint.in_local_pool) {
                (true, true) => "cluster, local",
                (true, false) => "cluster",
                (false, true) => "local",
                (false, false) => "none",
            };
            put!(
                body,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{pools}<td>{}</tr>",
                Text(&endpoint.address),
                Text(&endpoint.state),
                Text(place.and_then(|place| place.node.as_deref()).unwrap_or("-")),
                Text(place.map(|place| place.zones.join(", ")).unwrap_or_default()),
                endpoint.weight
            );
        }
        body.push_str("</table>");
        if let Some(flows) = flows {
            put!(body, "<h2>flows</h2><pre>{}</pre>", Text(flows));
        }
        let recent = history.entries.len().saturating_sub(RECENT);
        let recent = HistoryReport {
            entries: history.entries[recent..].to_vec(),
            ..history.clone()
        };
        put!(body, "<h2>history</h2><pre>{}</pre>", Text(recent));
        Self {
            title: detail.service.name.clone(),
            body,
        }
    }

    pub(super) fn history(history: &HistoryReport, service: Option<&str>) -> Self {
        let mut body = String::new();
        put!(
            body,
            "<form action=\"/history\"><input name=\"service\" value=\"{}\" placeholder=\"namespace/name\" \
             aria-label=\"service\"><button>show</button></form><pre>{}</pre>",
            Text(service.unwrap_or_default()),
            Text(history)
        );
        Self {
            title: "history".into(),
            body,
        }
    }

    pub(super) fn trace(
        from: Option<&str>,
        to: Option<&str>,
        traced: Option<Result<TraceReport, String>>,
    ) -> Self {
        let mut body = String::new();
        put!(
            body,
            "<form action=\"/trace\"><input name=\"from\" value=\"{}\" placeholder=\"from: 10.244.1.5\" \
             aria-label=\"from\"><input name=\"to\" value=\"{}\" placeholder=\"to: 10.96.0.10:53/udp\" \
             aria-label=\"to\"><button>trace</button></form>",
            Text(from.unwrap_or_default()),
            Text(to.unwrap_or_default())
        );
        match traced {
            None => {}
            Some(Err(why)) => {
                put!(body, "<p class=\"bad\">{}</p>", Text(why));
            }
            Some(Ok(trace)) => {
                put!(
                    body,
                    "<div class=\"map\">{}</div><pre>{}</pre>",
                    map::draw_trace(&trace),
                    Text(&trace)
                );
            }
        }
        Self {
            title: "trace a packet".into(),
            body,
        }
    }
}
