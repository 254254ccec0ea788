//! A service as a picture: clients, frontends, pools, and endpoints by node and zone. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::html::Text;
use crate::flows::{FlowRow, FlowsReport, amount};
use crate::status::{EndpointReport, PortReport, ServiceDetail};

/// So many boxes are drawn in a column; the others are counted in one.
const MOST: usize = 24;
const ROW: usize = 34;
const HEIGHT: usize = 26;
/// Where the columns begin, and how wide boxes are.
const COLUMNS: [(usize, usize); 4] = [(10, 180), (235, 280), (570, 110), (735, 355)];
const WIDTH: usize = 1100;

/// A box: what is in it, how it looks, and a longer text for those who point at it.
struct Cell {
    text: String,
    class: &'static str,
    title: String,
}

/// Boxes of the four columns, and lines between boxes of one and of the next.
#[derive(Default)]
struct Picture {
    columns: [Vec<Cell>; 4],
    lines: BTreeSet<(usize, usize, usize)>,
}

impl Picture {
    /// The place of a box in its column, put there if it is new and there is room.
    fn place(&mut self, column: usize, text: &str, class: &'static str, title: &str) -> usize {
        let cells = &mut self.columns[column];
        if let Some(at) = cells.iter().position(|cell| cell.text == text) {
            return at;
        }
        if cells.len() >= MOST {
            return MOST - 1;
        }
        let text = match cells.len() + 1 {
            MOST => "... and more".to_owned(),
            _ => text.to_owned(),
        };
        let title = title.to_owned();
        cells.push(Cell { text, class, title });
        cells.len() - 1
    }

    fn svg(&self) -> String {
        let rows = self.columns.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let height = 40 + rows * ROW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"map of the service\">"
        );
        let middle = |column: usize, at: usize| {
            let top = 34 + at * ROW;
            let shift = (rows - self.columns[column].len().min(rows)) * ROW / 2;
            top + shift
        };
        // Writing to a String cannot fail.
        for ((x, _), head) in COLUMNS.iter().zip(["clients", "frontends", "pools", "endpoints"]) {
            let _ = write!(svg, "<text class=\"head\" x=\"{x}\" y=\"18\">{head}</text>");
        }
        for (column, from, to) in &self.lines {
            let (x, width) = COLUMNS[*column];
            let (next, _) = COLUMNS[column + 1];
            let (start, y1) = (x + width, middle(*column, *from) + HEIGHT / 2);
            let y2 = middle(column + 1, *to) + HEIGHT / 2;
            let bend = (start + next) / 2;
            let _ = write!(
                svg,
                "<path d=\"M{start} {y1}C{bend} {y1} {bend} {y2} {next} {y2}\"/>"
            );
        }
        for (column, cells) in self.columns.iter().enumerate() {
            let (x, width) = COLUMNS[column];
            for (at, cell) in cells.iter().enumerate() {
                let y = middle(column, at);
                let (tx, ty) = (x + 8, y + 17);
                let Cell { text, class, title } = cell;
                let shown: String = text.chars().take(width / 7).collect();
                let _ = write!(
                    svg,
                    "<g><title>{}</title><rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
                     height=\"{HEIGHT}\" rx=\"4\"/><text x=\"{tx}\" y=\"{ty}\">{}</text></g>",
                    Text(title),
                    Text(shown)
                );
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Draws a service, with the flows that are known of it.
pub(super) fn draw(detail: &ServiceDetail, flows: Option<&FlowsReport>) -> String {
    let mut picture = Picture::default();
    let rows: &[FlowRow] = flows.map_or(&[], |flows| &flows.rows);
    for port in &detail.service.ports {
        draw_port(&mut picture, port, detail, rows);
    }
    draw_clients(&mut picture, rows);
    picture.svg()
}

/// The boxes of a port from right to left: endpoints, the pools that they are in, the frontends that lead there.
fn draw_port(picture: &mut Picture, port: &PortReport, detail: &ServiceDetail, flows: &[FlowRow]) {
    let mut in_order: Vec<(&EndpointReport, String)> = port
        .endpoints
        .iter()
        .map(|endpoint| (endpoint, place(endpoint, detail)))
        .collect();
    in_order.sort_by(|a, b| (&a.1, &a.0.address).cmp(&(&b.1, &b.0.address)));
    let busy = traffic(flows);
    for (endpoint, place) in in_order {
        let is_used = endpoint.in_cluster_pool || endpoint.in_local_pool;
        let class = match (is_used, endpoint.local) {
            (false, _) => "unused",
            (true, true) => "local",
            (true, false) => "endpoint",
        };
        let carried = busy
            .get(endpoint.address.as_str())
            .map(String::as_str)
            .unwrap_or_default();
        let weight = match endpoint.weight {
            1 => String::new(),
            weight => format!(", weight {weight}"),
        };
        let text = format!("{} {place}{weight}{carried}", endpoint.address);
        let title = format!(
            "{}: {}, weight {}",
            endpoint.address, endpoint.state, endpoint.weight
        );
        let at = picture.place(3, &text, class, &title);
        for (is_in, pool) in [
            (endpoint.in_cluster_pool, "cluster"),
            (endpoint.in_local_pool, "local"),
        ] {
            if is_in {
                let pool = picture.place(2, pool, "pool", "the endpoints to choose from");
                picture.lines.insert((2, pool, at));
            }
        }
    }
    for frontend in &port.frontends {
        let decisions = [&frontend.pods, &frontend.node, &frontend.others];
        let pools: BTreeSet<&str> = decisions
            .iter()
            .filter_map(|decision| decision.pool.as_deref())
            .collect();
        let refusal = decisions.iter().find(|decision| decision.pool.is_none());
        let class = if pools.is_empty() { "refused" } else { "frontend" };
        let text = if frontend.at.starts_with("node port") {
            format!("{}/{} ({})", frontend.at, port.protocol, port.family)
        } else {
            format!("{}/{} {}", frontend.at, port.protocol, frontend.kind)
        };
        let title = format!(
            "pods: {}; the node: {}; others: {}",
            frontend.pods.action, frontend.node.action, frontend.others.action
        );
        let at = picture.place(1, &text, class, &title);
        for pool in pools {
            let pool = picture.place(2, pool, "pool", "the endpoints to choose from");
            picture.lines.insert((1, at, pool));
        }
        if let Some(refusal) = refusal {
            let to = picture.place(2, &refusal.action, "refused", "what these packets meet");
            picture.lines.insert((1, at, to));
        }
    }
}

/// Who talks to it now, the busiest first.
fn draw_clients(picture: &mut Picture, flows: &[FlowRow]) {
    for row in flows {
        let client = picture.place(0, &row.client, "client", &format!("{} flows", row.flows));
        let frontends = &picture.columns[1];
        let leads = frontends.iter().position(|cell| {
            let at = row.frontend.split(" at ").next().unwrap_or_default();
            let at = at.split('/').next().unwrap_or_default();
            cell.text.starts_with(at)
        });
        if let Some(frontend) = leads {
            picture.lines.insert((0, client, frontend));
        }
    }
}

/// Where an endpoint runs, in a few letters.
fn place(endpoint: &EndpointReport, detail: &ServiceDetail) -> String {
    let Some(place) = detail.place(&endpoint.address) else {
        return String::new();
    };
    let node = place.node.as_deref().unwrap_or("no node");
    match place.zones.as_slice() {
        [] => format!("on {node}"),
        zones => format!("on {node}, for {}", zones.join(" and ")),
    }
}

/// What each endpoint carries, in words: rates where there are any.
fn traffic(flows: &[FlowRow]) -> BTreeMap<String, String> {
    let mut sums: BTreeMap<String, (u64, f64, bool)> = BTreeMap::new();
    for row in flows {
        let sum = sums.entry(row.endpoint.to_string()).or_default();
        sum.0 += row.flows;
        if let Some(rate) = &row.rate {
            sum.1 += rate.bytes_to + rate.bytes_back;
            sum.2 = true;
        }
    }
    let words = |(flows, bytes, has_rate): (u64, f64, bool)| {
        if has_rate {
            format!(", {flows} flows, {}/s", amount(bytes))
        } else {
            format!(", {flows} flows")
        }
    };
    sums.into_iter()
        .map(|(endpoint, sum)| (endpoint, words(sum)))
        .collect()
}

/// The way of one packet as a picture: a box for each step, and the endpoints at the end.
pub(super) fn draw_trace(trace: &crate::status::TraceReport) -> String {
    let mut steps: Vec<(String, &str)> = vec![(format!("packet from {}", trace.packet.from), "client")];
    steps.extend(trace.steps.iter().map(|step| (step.clone(), "frontend")));
    let (fate, class) = match trace.fate.as_str() {
        "forward" => ("forwarded, to one of these", "local"),
        "drop" => ("dropped: the sender hears nothing", "refused"),
        "reject" => ("rejected: the sender is told at once", "refused"),
        _ => ("left alone: as if no proxy were here", "unused"),
    };
    steps.push((fate.to_owned(), class));
    steps.extend(trace.targets.iter().take(MOST).map(|target| {
        let seen = if target.masquerade { "node" } else { "client" };
        (
            format!("{}, which sees the {seen}'s address", target.address),
            "endpoint",
        )
    }));
    let height = 20 + steps.len() * 44;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"the way of the packet\">"
    );
    for (number, (text, class)) in steps.iter().enumerate() {
        let y = 10 + number * 44;
        if number > 0 {
            let _ = write!(svg, "<path d=\"M40 {}L40 {y}\"/>", y - 14);
        }
        let _ = write!(
            svg,
            "<g><rect class=\"{class}\" x=\"10\" y=\"{y}\" width=\"1080\" height=\"30\" rx=\"4\"/>\
             <text x=\"20\" y=\"{}\">{}</text></g>",
            y + 20,
            Text(text)
        );
    }
    svg.push_str("</svg>");
    svg
}
