//! The loop with a backend that remembers what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ferry_backends::{Applied, Backend, Error, Inspection, RefusedWrites, Repair, Retry, Step};
use ferry_model::{
    DetectLocal, EndpointSlice, Event as Fact, Family, Host, Plan, PlanOptions, Planner, Policy, PortPlan,
    Protocol, Service, ServiceName, ServicePort, ServiceType, SliceEndpoint, SliceName, SlicePort,
    TrafficPolicy, UdpFrontends,
};
use ferry_sources::{Change, Kind, Mailbox, ObjectId, Trigger};

use super::{Board, Flows, Loop, Parts, Rhythm, Signal, Stop, Sweeper};
use crate::events::Recorder;
use crate::history::{History, What};
use crate::metrics::{Build, Counters, Format, Metrics};
use crate::modes::Mode;
use crate::servers::health::Health;
use crate::servers::service_health::ServiceHealth;

#[derive(Debug, Clone, PartialEq)]
struct Call {
    family: Family,
    services: Vec<String>,
    at: Instant,
}

/// Remembers calls; fails where the script says so.
#[derive(Clone, Default)]
struct Recording {
    calls: Arc<Mutex<Vec<Call>>>,
    /// How many of the next calls of a family fail.
    failing: Arc<Mutex<BTreeMap<Family, u32>>>,
    repaired: Arc<Mutex<Vec<Repair>>>,
    /// Whether the next call has its change refused and repaired by looking at everything.
    refused_change: Arc<Mutex<bool>>,
    retired: Arc<Mutex<bool>>,
    due: Arc<Mutex<Option<Duration>>>,
}

impl Recording {
    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    fn of(&self, family: Family) -> Vec<Call> {
        self.calls()
            .into_iter()
            .filter(|call| call.family == family)
            .collect()
    }

    fn fail(&self, family: Family, times: u32) {
        self.failing.lock().unwrap().insert(family, times);
    }
}

impl Backend for Recording {
    fn inspect(&mut self, _plan: &Plan, _port: &PortPlan) -> Result<Inspection, Error> {
        Ok(Inspection::default())
    }

    fn apply(&mut self, plan: &Plan, family: Family) -> Result<Applied, Error> {
        let services = plan.services().map(|service| service.name.to_string()).collect();
        self.calls.lock().unwrap().push(Call {
            family,
            services,
            at: Instant::now(),
        });
        if let Some(left) = self
            .failing
            .lock()
            .unwrap()
            .get_mut(&family)
            .filter(|left| **left > 0)
        {
            *left -= 1;
            return Err(Error::new(Step::Read, "look", Retry::Helps, "no"));
        }
        let repaired = std::mem::take(&mut *self.repaired.lock().unwrap());
        let refused_change = std::mem::take(&mut *self.refused_change.lock().unwrap());
        Ok(Applied {
            refused: RefusedWrites {
                partial: usize::from(refused_change),
                full: 0,
            },
            full: self.calls().len() <= 2,
            added: 1,
            repaired,
            ..Applied::default()
        })
    }

    fn differences(&mut self, _: &Plan, _: Family) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn next_due(&self) -> Option<Duration> {
        self.due.lock().unwrap().take()
    }

    fn is_retired(&self) -> bool {
        *self.retired.lock().unwrap()
    }
}

/// Counts the flows it is told to remove.
#[derive(Clone, Default)]
struct CountingFlows(Arc<Mutex<Vec<usize>>>);

impl Flows for CountingFlows {
    fn remove(&mut self, _: Family, _: &[IpAddr], stale: &[ferry_model::StaleFlows]) -> Result<u64, String> {
        self.0.lock().unwrap().push(stale.len());
        Ok(stale.len() as u64)
    }

    fn sweep(&mut self, _: Family, _: &UdpFrontends) -> Result<u64, String> {
        self.0.lock().unwrap().push(0);
        Ok(0)
    }
}

struct Bench {
    mailbox: Arc<Mailbox>,
    signal: Arc<Signal>,
    backend: Recording,
    flows: CountingFlows,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    board: Arc<Board>,
    history: Arc<History>,
    first_done: Arc<Mutex<bool>>,
    thread: Option<JoinHandle<Stop>>,
    _runtime: tokio::runtime::Runtime,
}

const QUICK: Rhythm = Rhythm {
    min: Duration::ZERO,
    retry: Duration::from_secs(3600),
    period: Duration::from_secs(3600),
};

impl Bench {
    fn start(rhythm: Rhythm) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
        let signal = Arc::new(Signal::new(Arc::clone(&mailbox)));
        let metrics = Arc::new(Metrics::new(Mode::named("nftables").unwrap(), Build::default()));
        let health = Arc::new(Health::new(Duration::from_secs(60)));
        let backend = Recording::default();
        let flows = CountingFlows::default();
        let board = Arc::new(Board::default());
        let history = Arc::new(History::default());
        let first_done = Arc::new(Mutex::new(false));
        let done = Arc::clone(&first_done);
        let recorder = Recorder::log_only(Arc::clone(&metrics));
        let parts = Parts {
            mailbox: Arc::clone(&mailbox),
            signal: Arc::clone(&signal),
            planner: Planner::new(options()),
            backend: Box::new(backend.clone()),
            families: BTreeSet::from(Family::BOTH),
            rhythm,
            health: Arc::clone(&health),
            metrics: Arc::clone(&metrics),
            recorder: recorder.clone(),
            service_health: ServiceHealth::new(
                runtime.handle().clone(),
                Arc::clone(&health),
                recorder,
                "node-1".into(),
            ),
            held_ports: None,
            sweeper: Some(Sweeper::start(flows.clone(), Arc::clone(&metrics)).unwrap()),
            board: Arc::clone(&board),
            history: Arc::clone(&history),
            after_first_sync: Some(Box::new(move || *done.lock().unwrap() = true)),
        };
        let thread = Some(std::thread::spawn(move || Loop::new(parts).run().0));
        Self {
            mailbox,
            signal,
            backend,
            flows,
            health,
            metrics,
            board,
            history,
            first_done,
            thread,
            _runtime: runtime,
        }
    }

    /// Everything listed, the first sync done.
    fn listed(rhythm: Rhythm) -> Self {
        let bench = Self::start(rhythm);
        bench.list();
        bench.wait(
            |b| b.backend.calls().len() == 2,
            "the first sync of both families",
        );
        bench
    }

    fn list(&self) {
        for kind in Kind::ALL {
            self.mailbox.listed(kind);
        }
    }

    fn put_service(&self, name: &str, ip: &str) {
        self.put(service(name, &[ip], Protocol::Tcp));
    }

    fn put(&self, service: Service) {
        let name = service.name.clone();
        let event = Fact::Service(name.clone(), Some(Arc::new(service)));
        self.mailbox.put(change(ObjectId::Service(name), event));
    }

    fn put_slice(&self, service: &str, endpoint: &str, trigger: Option<SystemTime>) {
        let slice = slice(service, endpoint);
        let name = slice.name.clone();
        let service = slice.service.clone();
        let family = Some(slice.family);
        let event = Fact::Slice(name.clone(), Some(Arc::new(slice)));
        let trigger = trigger.map(|time| Trigger {
            service,
            family,
            time,
        });
        self.mailbox.put(Change {
            trigger,
            ..change(ObjectId::Slice(name), event)
        });
    }

    fn wait(&self, done: impl Fn(&Self) -> bool, what: &str) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "waiting for {what}: {:?}",
                self.backend.calls()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stop(mut self) -> Stop {
        self.signal.stop(Stop::Signal("test"));
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.signal.stop(Stop::Signal("drop"));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn options() -> PlanOptions {
    PlanOptions {
        node_name: "node-1".into(),
        policy: Policy::nftables().without_localhost_node_ports(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(Vec::new()),
        node_port_addresses: Vec::new(),
        bind_address: None,
        allow_external_ips: true,
    }
}

fn change(id: ObjectId, event: Fact) -> Change {
    Change {
        id,
        events: vec![event],
        skipped: Vec::new(),
        trigger: None,
        version: None,
    }
}

fn service(name: &str, cluster_ips: &[&str], protocol: Protocol) -> Service {
    let cluster_ips: Vec<IpAddr> = cluster_ips.iter().map(|ip| ip.parse().unwrap()).collect();
    Service {
        ports: vec![ServicePort::new("p", protocol, 80)],
        ..Service::new(ServiceName::new("ns", name), cluster_ips)
    }
}

fn slice(service: &str, endpoint: &str) -> EndpointSlice {
    let address: IpAddr = endpoint.parse().unwrap();
    EndpointSlice {
        name: SliceName::new("ns", &format!("{service}-{}", Family::of(address))),
        service: ServiceName::new("ns", service),
        family: Family::of(address),
        ports: vec![SlicePort {
            name: "p".into(),
            protocol: Protocol::Udp,
            port: 8080,
        }],
        endpoints: vec![SliceEndpoint::ready(address, Some("node-1".into()))],
    }
}

#[test]
fn nothing_is_written_before_everything_was_listed() {
    let bench = Bench::start(QUICK);
    bench.put_service("a", "10.0.0.1");
    for kind in [Kind::Service, Kind::Node, Kind::ServiceCidr] {
        bench.mailbox.listed(kind);
    }
    bench.signal.alarm();
    bench.signal.host(Host::default());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.backend.calls(), []);
    assert!(!bench.board.read().listed);
    bench.mailbox.listed(Kind::EndpointSlice);
    bench.wait(|b| b.backend.calls().len() == 2, "both families");
    for call in bench.backend.calls() {
        assert_eq!(call.services, ["ns/a"]);
    }
    bench.wait(
        |b| *b.first_done.lock().unwrap(),
        "what runs after the first sync",
    );
    assert_eq!(bench.stop(), Stop::Signal("test"));
}

#[test]
fn a_change_syncs_the_families_it_concerns() {
    let bench = Bench::listed(QUICK);
    bench.put_service("six", "fd00::1");
    bench.wait(|b| b.backend.of(Family::V6).len() == 2, "IPv6");
    assert_eq!(bench.backend.of(Family::V4).len(), 1, "IPv4 has nothing to do");
    bench.put(service("both", &["10.0.0.1", "fd00::2"], Protocol::Tcp));
    bench.wait(
        |b| b.backend.of(Family::V6).len() == 3 && b.backend.of(Family::V4).len() == 2,
        "both",
    );
    bench.put(service("both", &["10.0.0.1", "fd00::2"], Protocol::Tcp));
    bench.put_service("again", "10.0.0.9");
    bench.wait(|b| b.backend.of(Family::V4).len() == 3, "the next change");
    assert_eq!(
        bench.backend.of(Family::V6).len(),
        3,
        "an object that stays as it is means nothing"
    );
}

#[test]
fn a_burst_coalesces_and_syncs_keep_their_distance() {
    let min = Duration::from_millis(300);
    let bench = Bench::listed(Rhythm { min, ..QUICK });
    for i in 0..50 {
        bench.put_service(&format!("s{i}"), &format!("10.0.0.{i}"));
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.wait(
        |b| b.backend.of(Family::V4).last().unwrap().services.len() == 50,
        "all of it",
    );
    let calls = bench.backend.of(Family::V4);
    for pair in calls.windows(2) {
        assert!(pair[1].at - pair[0].at >= min, "{pair:?}");
    }
    // Fifty changes one by one would need fifty syncs; at this distance that would take 15 s.
    assert!(calls.len() < 50, "{}", calls.len());
}

#[test]
fn a_failing_family_is_retried_and_holds_nobody_back() {
    let bench = Bench::start(Rhythm {
        retry: Duration::from_millis(50),
        ..QUICK
    });
    bench.backend.fail(Family::V4, 3);
    bench.list();
    bench.wait(
        |b| b.backend.of(Family::V4).len() == 4,
        "three failures and a success",
    );
    assert_eq!(bench.backend.of(Family::V6).len(), 1);
    bench.wait(|b| *b.first_done.lock().unwrap(), "the end of the first sync");
    let notice = bench.board.read();
    let (v4, v6) = (&notice.families[&Family::V4], &notice.families[&Family::V6]);
    assert_eq!((v4.failures, v4.syncs, &v4.error), (3, 1, &None));
    assert_eq!((v6.failures, v6.syncs), (0, 1));
    let failures = bench.metrics.sync_failures.get(&["IPv4"]).unwrap();
    assert_eq!(failures.0, 3.0);
    assert!(bench.metrics.sync_failures.get(&["IPv6"]).is_none());
}

#[test]
fn a_backend_that_has_retired_ends_the_loop_and_nothing_more_is_applied() {
    let mut bench = Bench::listed(QUICK);
    *bench.backend.retired.lock().unwrap() = true;
    let applied = bench.backend.calls().len();
    bench.signal.alarm();
    let thread = bench.thread.take().unwrap();
    assert_eq!(thread.join().unwrap(), Stop::Succeeded);
    assert_eq!(bench.backend.calls().len(), applied);
}

#[test]
fn a_refused_change_counts_even_if_it_was_repaired_at_once() {
    let bench = Bench::listed(QUICK);
    *bench.backend.refused_change.lock().unwrap() = true;
    bench.signal.alarm();
    let counted = |b: &Bench| {
        let of = |counters: &Counters| counters.get(&["IPv4"]).map_or(0.0, |n| n.0);
        (
            of(&b.metrics.sync_failures),
            of(&b.metrics.partial_restore_failures),
        )
    };
    bench.wait(|b| counted(b) == (1.0, 1.0), "the count");
    assert_eq!(bench.board.read().families[&Family::V4].error, None);
}

#[test]
fn a_sync_that_keeps_failing_shows_and_makes_the_family_stale() {
    let bench = Bench::start(QUICK);
    bench.backend.fail(Family::V6, u32::MAX);
    bench.list();
    bench.wait(|b| !b.backend.of(Family::V6).is_empty(), "IPv6");
    bench.wait(
        |b| b.board.read().families[&Family::V6].error.is_some(),
        "the error",
    );
    assert_eq!(
        bench.board.read().families[&Family::V6].error.as_deref(),
        Some("look: no")
    );
    let now = crate::clock::Now::read();
    assert!(bench.health.healthy(now));
    let later = crate::clock::Now {
        steady: now.steady + Duration::from_secs(61),
        ..now
    };
    assert!(!bench.health.healthy(later));
    assert!(!*bench.first_done.lock().unwrap());
    assert!(bench.metrics.last_sync.get(&["IPv6"]).is_none());
}

#[test]
fn an_alarm_and_new_addresses_lead_to_a_sync_and_a_repair_is_counted() {
    let bench = Bench::listed(QUICK);
    bench.backend.repaired.lock().unwrap().push(Repair {
        what: "table".into(),
        by: Some("nft".into()),
    });
    bench.signal.alarm();
    bench.wait(|b| b.backend.calls().len() == 4, "a look at both families");
    bench.wait(
        |b| b.metrics.repairs.get(&["IPv4"]).is_some_and(|n| n.0 == 1.0),
        "the count",
    );
    let repair = bench.board.read().families[&Family::V4].last_repair.clone();
    assert_eq!(repair.as_deref(), Some("table (changed by nft)"));
    bench.signal.host(Host {
        addresses: BTreeSet::from(["192.0.2.1".parse().unwrap()]),
    });
    bench.wait(|b| b.backend.calls().len() == 6, "new addresses");
}

#[test]
fn a_backend_can_ask_to_be_called_again() {
    let bench = Bench::start(QUICK);
    *bench.backend.due.lock().unwrap() = Some(Duration::from_millis(20));
    bench.list();
    bench.wait(|b| b.backend.calls().len() == 3, "the call it asked for");
}

#[test]
fn trigger_times_become_latencies_and_stale_flows_are_handed_over() {
    let bench = Bench::listed(QUICK);
    // Each family has slices of its own, and counts what they tell.
    bench.put(service("dns", &["10.0.0.10", "fd00::10"], Protocol::Udp));
    bench.wait(|b| b.backend.of(Family::V4).len() == 2, "the service");
    let trigger = SystemTime::now() + Duration::from_millis(1);
    bench.put_slice("dns", "10.1.0.1", Some(trigger));
    bench.wait(|b| b.backend.of(Family::V4).len() == 3, "its first endpoint");
    bench.wait(
        |b| {
            b.metrics
                .network_programming
                .get(&["IPv4"])
                .is_some_and(|h| h.count() == 1)
        },
        "the latency",
    );
    assert!(bench.metrics.network_programming.get(&["IPv6"]).is_none());
    let text = bench.metrics.text(Format::OpenMetrics);
    let bucket = r#"kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 1 # {service="ns/dns"} 0"#;
    assert!(text.contains(bucket), "{text}");
    bench.wait(
        |b| b.flows.0.lock().unwrap().contains(&1),
        "flows that found no endpoint",
    );
    bench.put_slice("dns", "10.1.0.2", None);
    bench.wait(
        |b| b.flows.0.lock().unwrap().iter().sum::<usize>() >= 2,
        "flows of the endpoint that went",
    );
    assert_eq!(bench.metrics.sync_duration.get(&["IPv6"]).unwrap().count(), 2);
}

#[test]
fn every_change_of_udp_endpoints_counts_as_a_look_for_stale_flows() {
    let bench = Bench::listed(QUICK);
    let looks = |bench: &Bench| {
        let histogram = bench.metrics.conntrack_duration.get(&["IPv4"]);
        histogram.map_or(0, |histogram| histogram.count())
    };
    bench.put(service("dns", &["10.0.0.10"], Protocol::Udp));
    bench.put_slice("dns", "10.1.0.1", None);
    bench.wait(|b| looks(b) >= 1, "the first endpoint");
    let before = looks(&bench);
    let calls = bench.backend.of(Family::V4).len();
    let mut two = slice("dns", "10.1.0.1");
    let another = "10.1.0.2".parse().unwrap();
    two.endpoints
        .push(SliceEndpoint::ready(another, Some("node-1".into())));
    let name = two.name.clone();
    let event = Fact::Slice(name.clone(), Some(Arc::new(two)));
    bench.mailbox.put(change(ObjectId::Slice(name), event));
    bench.wait(|b| b.backend.of(Family::V4).len() > calls, "another endpoint");
    bench.wait(|b| looks(b) == before + 1, "a look, though no flow can be stale");
    let calls = bench.backend.of(Family::V4).len();
    bench.put(service("web", &["10.0.0.11"], Protocol::Tcp));
    bench.put_slice("web", "10.1.0.3", None);
    bench.wait(|b| b.backend.of(Family::V4).len() > calls, "a TCP service");
    assert_eq!(looks(&bench), before + 1);
}

#[test]
fn questions_are_answered_between_syncs_even_before_the_first() {
    let bench = Bench::start(QUICK);
    let (tell, told) = std::sync::mpsc::channel();
    bench.signal.ask(Box::new(move |planner, _| {
        let _ = tell.send(planner.plan().services().len());
    }));
    assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), 0);
}

#[test]
fn a_health_check_port_opens_with_the_sync() {
    let bench = Bench::listed(QUICK);
    let port = {
        let probe = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        probe.local_addr().unwrap().port()
    };
    let wanted = Service {
        kind: ServiceType::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: Some(port),
        ..service("lb", &["10.0.0.7"], Protocol::Tcp)
    };
    bench.put(wanted);
    bench.wait(
        |_| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(),
        "the port",
    );
    let name = ServiceName::new("ns", "lb");
    bench
        .mailbox
        .put(change(ObjectId::Service(name.clone()), Fact::Service(name, None)));
    bench.wait(
        |_| std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "its end",
    );
}

#[test]
fn the_history_says_what_changed_why_and_when_it_was_in_force() {
    let bench = Bench::listed(QUICK);
    bench.put(service("a", &["10.0.0.1"], Protocol::Udp));
    bench.put_slice("a", "10.1.0.1", None);
    let in_force = |history: &History| {
        let entries = history.report(Some("ns/a"), None).entries;
        entries.into_iter().rev().find_map(|entry| match entry.what {
            What::Changed {
                services, in_force, ..
            } if !in_force.is_empty() => Some((services[0].moves.clone(), in_force)),
            _ => None,
        })
    };
    bench.wait(
        |b| in_force(&b.history).is_some_and(|(moves, _)| !moves.is_empty()),
        "the endpoint to be in force",
    );
    let (moves, in_force) = in_force(&bench.history).unwrap();
    assert_eq!(moves[0].endpoint.to_string(), "10.1.0.1:8080");
    assert!(moves[0].why.contains("slice a-IPv4"), "{}", moves[0].why);
    assert_eq!(in_force[0].family, "IPv4");
    assert!((0.0..10.0).contains(&in_force[0].seconds_later));
    let whats = |service: Option<&str>| -> Vec<String> {
        let report = bench.history.report(service, None);
        report.entries.iter().map(ToString::to_string).collect()
    };
    assert!(whats(None)[0].starts_with("listed everything: 0 services"));
    assert!(!whats(Some("ns/other")).concat().contains("10.1.0.1"));

    *bench.backend.repaired.lock().unwrap() = vec![Repair {
        what: "table kube-proxy".into(),
        by: Some("nft (12)".into()),
    }];
    bench.signal.alarm();
    bench.wait(
        |_| {
            whats(Some("ns/other"))
                .concat()
                .contains("put right: table kube-proxy, changed by nft (12)")
        },
        "the repair",
    );
    bench.backend.fail(Family::V4, 2);
    for _ in 0..2 {
        let calls = bench.backend.of(Family::V4).len();
        bench.signal.alarm();
        bench.wait(|b| b.backend.of(Family::V4).len() > calls, "a failing sync");
    }
    bench.wait(
        |_| {
            whats(None)
                .concat()
                .contains("IPv4 sync failed, 2 times in a row: look: no")
        },
        "both failures in one entry",
    );
}
