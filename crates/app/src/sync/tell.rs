//! What the log says about changed objects and services, at no cost where nobody listens.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ferry_model::{Contest, Event as Fact, PortPlan, Replaced, ServicePlan, Skipped, Update};
use tracing::Level;

/// How many changed services one line names.
const NAMED_SERVICES: usize = 10;
/// How many endpoints of a port one line names.
const NAMED_ENDPOINTS: usize = 100;

/// How many objects that are not served have a line of their own at once, and after which time one more has.
const SKIPPED_LINES: u32 = 20;
const SKIPPED_INTERVAL: Duration = Duration::from_secs(10);
/// How often the others are counted.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// Names the objects that changed (`-v=4`).
pub(super) fn objects(events: &[Fact]) {
    if !tracing::enabled!(Level::TRACE) {
        return;
    }
    let change = |is_there: bool| if is_there { "updated" } else { "removed" };
    for event in events {
        match event {
            Fact::Service(name, fact) => {
                tracing::trace!(service = %name, change = change(fact.is_some()), "Service changed");
            }
            Fact::Slice(name, Some(slice)) => tracing::trace!(
                endpointSlice = %name, service = %slice.service, endpoints = slice.endpoints.len(), change = "updated",
                "EndpointSlice changed"
            ),
            Fact::Slice(name, None) => {
                tracing::trace!(endpointSlice = %name, change = "removed", "EndpointSlice changed");
            }
            Fact::Node(node) => tracing::trace!(change = change(node.is_some()), "Node changed"),
            Fact::ServiceCidr(name, cidrs) => {
                tracing::trace!(serviceCIDR = %name, change = change(cidrs.is_some()), "ServiceCIDR changed");
            }
            Fact::Host(host) => {
                tracing::trace!(addresses = host.addresses.len(), "addresses of the host changed")
            }
        }
    }
}

/// Names the services whose plan changed (`-v=2`), and what became of their ports (`-v=4`) and endpoints (`-v=3`).
pub(super) fn services(update: &Update) {
    if update.replaced.is_empty() || !tracing::enabled!(Level::DEBUG) {
        return;
    }
    let names = update.replaced.iter().filter_map(|replaced| {
        let service = replaced.new.as_deref().or(replaced.old.as_deref())?;
        Some(service.name.as_str())
    });
    let names: Vec<&str> = names.take(NAMED_SERVICES).collect();
    tracing::debug!(
        count = update.replaced.len(),
        services = names.join(","),
        "Services changed"
    );
    update.replaced.iter().for_each(ports);
}

fn ports(replaced: &Replaced) {
    fn of(service: Option<&ServicePlan>) -> &[PortPlan] {
        service.map_or(&[], |service| &service.ports)
    }
    let (old, new) = (of(replaced.old.as_deref()), of(replaced.new.as_deref()));
    let mut before: HashMap<_, _> = old.iter().map(|port| ((port.family, &port.name), port)).collect();
    for port in new {
        let known = before.remove(&(port.family, &port.name));
        if known == Some(port) {
            continue;
        }
        let (name, protocol) = (&port.name, port.protocol().to_string().to_uppercase());
        let Some(frontend) = port.frontends.first() else {
            continue;
        };
        let address = format!("{}/{protocol}", frontend.key);
        if known.is_none() {
            tracing::trace!(portName = %name, servicePort = address, "Adding new service port");
        } else {
            tracing::trace!(portName = %name, servicePort = address, "Updating existing service port");
        }
        if known.map_or(&[][..], |known| &known.endpoints) != &*port.endpoints {
            let endpoints = endpoints(port);
            tracing::debug!(v = 3, portName = %name, endpoints, "Setting endpoints for service port name");
        }
    }
    for gone in before.into_values() {
        tracing::trace!(portName = %gone.name, "Removing service port");
    }
}

fn endpoints(port: &PortPlan) -> String {
    let named = port.endpoints.iter().take(NAMED_ENDPOINTS);
    let named: Vec<String> = named.map(|endpoint| endpoint.address().to_string()).collect();
    match port.endpoints.len() - named.len() {
        0 => named.join(","),
        more => format!("{} and {more} more", named.join(",")),
    }
}

/// So many new contests are told at once; the others are in the status.
const NEW_CONTESTS: usize = 20;

/// The contests that were not told before. One that was settled and comes back is new.
pub(super) fn unheard_of(told: &mut BTreeSet<Contest>, now: BTreeSet<Contest>) -> Vec<Contest> {
    let new = now.difference(told).take(NEW_CONTESTS).cloned().collect();
    *told = now;
    new
}

/// Says which objects are not served. Many of them are in the status; one line each would only bury the log.
#[derive(Debug)]
pub(super) struct SkippedLog {
    lines: u32,
    refilled: Instant,
    left_out: usize,
    summary_due: Instant,
}

impl SkippedLog {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            lines: SKIPPED_LINES,
            refilled: now,
            left_out: 0,
            summary_due: now,
        }
    }

    pub(super) fn tell(&mut self, skipped: &[Skipped], now: Instant) {
        let earned = now.saturating_duration_since(self.refilled).as_secs() / SKIPPED_INTERVAL.as_secs();
        if let earned @ 1.. = u32::try_from(earned).unwrap_or(SKIPPED_LINES) {
            self.lines = self.lines.saturating_add(earned).min(SKIPPED_LINES);
            self.refilled = now;
        }
        for skipped in skipped {
            if self.lines == 0 {
                self.left_out += 1;
                continue;
            }
            self.lines -= 1;
            tracing::error!(
                object = %skipped.object,
                part = skipped.part,
                reason = skipped.reason,
                "Object is not served"
            );
        }
        if self.left_out > 0 && now >= self.summary_due {
            let count = std::mem::take(&mut self.left_out);
            tracing::error!(count, "More objects are not served; `ferry status` names them");
            self.summary_due = now + SUMMARY_INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ferry_model::{
        EndpointSlice, Family, ObjectRef, Planner, Protocol, Service, ServiceName, ServicePort,
    };
    use ferry_model::{SliceEndpoint, SliceName, SlicePort};
    use tracing_subscriber::prelude::*;

    use super::super::tests::options;
    use super::*;
    use crate::logging::{KlogLayer, Logging};

    /// What is logged at a verbosity, without the header of each line.
    fn logged(verbosity: u32, emit: impl FnOnce()) -> Vec<String> {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = lines.clone();
        let logging = Logging {
            verbosity,
            ..Logging::default()
        };
        let layer = KlogLayer::new(
            logging,
            Box::new(move |_, line| {
                let line = String::from_utf8_lossy(line).into_owned();
                let text = line.split_once("] ").map(|(_, text)| text.trim_end().to_owned());
                sink.lock().unwrap().extend(text);
            }),
        );
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn a_contest_is_told_once_to_both_sides() {
        let claim = |name: &str| {
            let name = ServiceName::new("shop", name);
            let service = Service {
                ports: vec![ServicePort::new("http", Protocol::Tcp, 80)],
                ..Service::new(name.clone(), vec!["10.96.0.1".parse().unwrap()])
            };
            Fact::Service(name, Some(Arc::new(service)))
        };
        let mut planner = Planner::new(options());
        let mut told = BTreeSet::new();
        let mut hear = |events: Vec<Fact>| {
            planner.update(events);
            unheard_of(&mut told, planner.plan().contests().collect())
        };
        assert!(hear(vec![claim("a")]).is_empty());
        let new = hear(vec![claim("b")]);
        let notes = crate::events::Event::contested(&new[0]).map(|event| event.note);
        assert_eq!(
            notes,
            [
                "10.96.0.1:80 is not served as cluster IP of shop/b:http: shop/a:http has it",
                "10.96.0.1:80 stays with shop/a:http: shop/b:http asks for it too, as cluster IP",
            ]
        );
        assert!(hear(vec![claim("b"), slice(&["10.0.0.1"])]).is_empty());
        let gone = Fact::Service(ServiceName::new("shop", "b"), None);
        assert!(hear(vec![gone]).is_empty());
        assert_eq!(hear(vec![claim("b")]).len(), 1);
    }

    fn web(port: u16) -> Fact {
        let name = ServiceName::new("shop", "web");
        let service = Service {
            ports: vec![ServicePort::new("http", Protocol::Tcp, port)],
            ..Service::new(name.clone(), vec!["10.96.0.1".parse().unwrap()])
        };
        Fact::Service(name, Some(Arc::new(service)))
    }

    fn slice(addresses: &[&str]) -> Fact {
        let port = SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        };
        let endpoint = |address: &&str| SliceEndpoint::ready(address.parse().unwrap(), None);
        Fact::from(EndpointSlice {
            name: SliceName::new("shop", "web-1"),
            service: ServiceName::new("shop", "web"),
            family: Family::V4,
            ports: vec![port],
            endpoints: addresses.iter().map(endpoint).collect(),
        })
    }

    #[test]
    fn the_log_names_what_changed_as_verbosely_as_asked() {
        let at = |verbosity| {
            let mut planner = Planner::new(options());
            let mut step = |events: Vec<Fact>| {
                objects(&events);
                services(&planner.update(events));
            };
            logged(verbosity, || {
                step(vec![web(80), slice(&["10.1.0.1"])]);
                step(vec![slice(&["10.1.0.1", "10.1.0.2"])]);
                step(vec![web(81)]);
                step(vec![Fact::Service(ServiceName::new("shop", "web"), None)]);
            })
        };
        assert!(at(1).is_empty());
        assert_eq!(at(2), [r#""Services changed" count=1 services="shop/web""#; 4]);
        assert_eq!(
            at(3)[..4],
            [
                r#""Services changed" count=1 services="shop/web""#,
                r#""Setting endpoints for service port name" portName="shop/web:http" endpoints="10.1.0.1:8080""#,
                r#""Services changed" count=1 services="shop/web""#,
                r#""Setting endpoints for service port name" portName="shop/web:http" endpoints="10.1.0.1:8080,10.1.0.2:8080""#,
            ]
        );
        let detailed = at(4).join("\n");
        for line in [
            r#""Service changed" service="shop/web" change="updated""#,
            r#""Service changed" service="shop/web" change="removed""#,
            r#""EndpointSlice changed" endpointSlice="shop/web-1" service="shop/web" endpoints=2 change="updated""#,
            r#""Adding new service port" portName="shop/web:http" servicePort="10.96.0.1:80/TCP""#,
            r#""Updating existing service port" portName="shop/web:http" servicePort="10.96.0.1:81/TCP""#,
            r#""Removing service port" portName="shop/web:http""#,
        ] {
            assert!(detailed.contains(line), "{line} is not in\n{detailed}");
        }
    }

    #[test]
    fn ten_thousand_bad_objects_do_not_fill_the_log() {
        let skipped: Vec<Skipped> = (0..10_000)
            .map(|n| Skipped {
                object: ObjectRef::Service(ServiceName::new("shop", &format!("s{n}"))),
                part: None,
                reason: "is bad".into(),
            })
            .collect();
        let start = Instant::now();
        let mut log = SkippedLog::new(start);
        let mut tell =
            |skipped: &[Skipped], at: u64| logged(0, || log.tell(skipped, start + Duration::from_secs(at)));
        let lines = tell(&skipped, 0);
        assert_eq!(lines.len(), 21);
        assert_eq!(
            lines[0],
            r#""Object is not served" object="Service shop/s0" reason="is bad""#
        );
        assert_eq!(
            lines[20],
            r#""More objects are not served; `ferry status` names them" count=9980"#
        );
        // One by one they are no more: a line every ten seconds, and a count every minute.
        let one_by_one: Vec<String> = (0..120).flat_map(|second| tell(&skipped[..1], second)).collect();
        assert!((12..=16).contains(&one_by_one.len()), "{one_by_one:#?}");
        assert_eq!(
            tell(&skipped, 3600).len(),
            21,
            "after an hour there is room again"
        );
    }
}
