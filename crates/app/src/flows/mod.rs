//! Who talks to which service through which endpoint now. Read from the kernel's connection tracking when asked for, and
//! from the relay in userspace mode; nothing is kept or counted while nobody asks. Memory is bounded: see [`table::ROWS`].

mod report;
mod table;

pub(crate) use report::amount;
pub use report::{FlowRate, FlowRow, FlowsReport};

use std::time::{Duration, Instant};

use ferry_backends::{Backend, RelayedFlows, Traffic};
use ferry_host::conntrack::{self, Conntrack, FlowEvent, FlowMonitor};
use ferry_host::sysctl::Sysctls;
use ferry_model::{Family, FrontendKey, Plan, ServiceName};

use table::{Sample, Wanted};

/// No window is longer.
pub const LONGEST_WINDOW: Duration = Duration::from_secs(10);

/// What is counted from a moment to another; rates are the difference.
#[derive(Debug)]
pub struct Counted {
    first: Sample,
    last: Option<Sample>,
    seconds: f64,
    is_accounted: bool,
    missed: bool,
}

/// The frontends of one service, to look for nothing else.
pub fn frontends_of(plan: &Plan, service: &str) -> Vec<FrontendKey> {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let service = plan.service(&ServiceName::new(namespace, name));
    let ports = service.iter().flat_map(|service| &service.ports);
    let mut keys: Vec<FrontendKey> = ports
        .flat_map(|port| port.frontends.iter().map(|frontend| frontend.key))
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Reads the kernel's table, twice if there is a window between, and what begins and ends meanwhile. Blocks for as long.
pub fn read(wanted: Option<&[FrontendKey]>, window: Duration) -> Result<Counted, conntrack::Error> {
    let wanted = Wanted::new(wanted);
    let window = window.min(LONGEST_WINDOW);
    let mut table = Conntrack::open()?;
    let accounting = Sysctls::default().get("net/netfilter/nf_conntrack_acct");
    let mut counted = Counted {
        first: Sample::default(),
        last: None,
        seconds: 0.0,
        is_accounted: accounting.is_ok_and(|value| value != 0),
        missed: false,
    };
    let mut monitor = None;
    if !window.is_zero() {
        monitor = Some(FlowMonitor::open()?);
    }
    let start = Instant::now();
    dump(&mut table, &wanted, &mut counted.first)?;
    if let Some(monitor) = &mut monitor {
        let mut last = Sample::default();
        let missed = &mut counted.missed;
        let mut note = |event: FlowEvent| match event {
            FlowEvent::Began(flow) => last.began(&wanted, &flow),
            FlowEvent::Ended(flow, count) => last.ended(&wanted, &flow, count),
            FlowEvent::Missed => *missed = true,
        };
        monitor.listen(start + window, &mut note)?;
        let end = Instant::now();
        dump(&mut table, &wanted, &mut last)?;
        counted.seconds = (end - start).as_secs_f64();
        counted.last = Some(last);
    }
    Ok(counted)
}

fn dump(table: &mut Conntrack, wanted: &Wanted, into: &mut Sample) -> Result<(), conntrack::Error> {
    for family in [conntrack::Family::Ip, conntrack::Family::Ip6] {
        table.each(family, |flow, count| into.add(wanted, &flow, count))?;
    }
    Ok(())
}

/// Names what was read.
pub fn named(counted: Counted, plan: &Plan) -> FlowsReport {
    let Counted {
        first,
        last,
        seconds,
        is_accounted,
        missed,
    } = counted;
    let mut notes = Vec::new();
    if !is_accounted {
        notes.push(
            "bytes are not counted: sysctl net.netfilter.nf_conntrack_acct=1 counts those of new flows"
                .into(),
        );
    }
    if missed {
        notes.push("more flows began and ended than the kernel could tell: rates are too low".into());
    }
    let (rows, others, left_out) = table::rows(&first, last.as_ref(), seconds, is_accounted, plan);
    FlowsReport {
        source: "connection tracking".into(),
        seconds: last.is_some().then_some(seconds),
        rows,
        others,
        left_out,
        notes,
    }
}

/// What a relay knows of its connections at a moment.
#[derive(Debug)]
pub struct Relayed {
    flows: Vec<RelayedFlows>,
    traffic: Vec<Traffic>,
    at: Instant,
}

/// None where the kernel carries the connections.
pub fn relayed(backend: &mut dyn Backend) -> Option<Relayed> {
    Some(Relayed {
        flows: backend.relayed()?,
        traffic: backend.traffic().unwrap_or_default(),
        at: Instant::now(),
    })
}

/// The connections of a relay, by endpoint; rates by service port, if it was asked twice.
pub fn of_relay(first: &Relayed, last: Option<&Relayed>, service: Option<&str>) -> FlowsReport {
    let now = last.unwrap_or(first);
    let is_asked_for =
        |port: &ferry_model::PortName| service.is_none_or(|service| port.service.as_str() == service);
    let seconds = last.map(|last| (last.at - first.at).as_secs_f64());
    let (mut rows, left_out) = (Vec::new(), now.flows.len().saturating_sub(table::ROWS));
    let asked = now.flows.iter().filter(|flows| is_asked_for(&flows.port));
    for flows in asked.take(table::ROWS) {
        rows.push(FlowRow {
            service: flows.port.to_string(),
            frontend: format!("{} {}", flows.family, flows.port.protocol),
            client: "any".into(),
            endpoint: flows.endpoint,
            flows: flows.open,
            bytes: None,
            rate: None,
        });
    }
    let find = |all: &[Traffic], family: Family, port: &ferry_model::PortName| {
        let mut same = all.iter().filter(|row| row.family == family && row.port == *port);
        same.next()
            .map(|row| (row.connections, row.bytes.unwrap_or_default()))
    };
    let mut notes = Vec::new();
    for row in now.traffic.iter().filter(|row| is_asked_for(&row.port)) {
        let ((was, was_bytes), Some(seconds)) = (
            find(&first.traffic, row.family, &row.port).unwrap_or_default(),
            seconds,
        ) else {
            continue;
        };
        let bytes = row.bytes.unwrap_or_default();
        if row.connections == was && bytes == was_bytes {
            continue;
        }
        let per_second = |now: u64, was: u64| now.saturating_sub(was) as f64 / seconds;
        notes.push(format!(
            "{} {}: {:.1} new connections/s, {:.0} bytes/s in, {:.0} bytes/s out",
            row.port,
            row.family,
            per_second(row.connections, was),
            per_second(bytes.0, was_bytes.0),
            per_second(bytes.1, was_bytes.1)
        ));
    }
    FlowsReport {
        source: "the relay".into(),
        seconds,
        rows,
        others: 0,
        left_out: left_out as u64,
        notes,
    }
}
