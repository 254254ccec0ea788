//! Cases where the cluster, the proxy or its rules change while packets flow.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Answer, Namespace, Probe, Proto};
use ferry_lab::{at_most, patience};
use rustix::process::Signal;
use serde_json::Value;

use crate::objects::{self, CLUSTER_CIDR, Endpoint, POD1, POD1_V6, POD2, RPOD1, RPOD1_V6, RPOD2};
use crate::traffic::{Conversation, Shot, Stream};
use crate::{Mode, Stage};

pub(crate) const VIP: &str = "10.96.9.1";
pub(crate) const VIP_V6: &str = "fd00:10:96::91";
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn stage(mode: Mode, objects: &[Value]) -> Result<Stage> {
    Stage::up(mode, &[CLUSTER_CIDR.to_owned()], objects)
}

fn probe(from: &str, to: &str, proto: Proto) -> Result<Probe> {
    Ok(Probe::new(from, to.parse()?, 80, proto))
}

/// Long enough for any machine that is merely slow. TCP tries again in this time; a datagram that was lost stays
/// lost, and shows it.
pub(crate) const PATIENT: Duration = Duration::from_secs(5);

/// Streams from every kind of client, over both protocols and families. `limit` is how long each shot waits.
pub(crate) fn streams(stage: &Stage, limit: Option<Duration>) -> Result<Vec<(String, Stream)>> {
    let kinds = [
        ("pod2", VIP, Proto::Tcp),
        ("pod2", VIP, Proto::Udp),
        ("client", VIP, Proto::Tcp),
        ("node", VIP, Proto::Tcp),
        ("pod2", VIP_V6, Proto::Tcp),
        ("client", VIP_V6, Proto::Udp),
    ];
    let start = |(from, to, proto): (&str, &str, Proto)| {
        let mut probe = probe(from, to, proto)?;
        probe.limit = limit;
        let stream = Stream::start(stage.network(), probe, PAUSE)?;
        Ok((format!("{from} -> {to}/{proto}"), stream))
    };
    kinds.into_iter().map(start).collect()
}

pub(crate) fn stop(streams: Vec<(String, Stream)>) -> Result<Vec<(String, Vec<Shot>)>> {
    streams
        .into_iter()
        .map(|(name, stream)| Ok((name, stream.stop()?)))
        .collect()
}

pub(crate) fn dual_stack_service(v4: &[Endpoint], v6: &[Endpoint]) -> Vec<Value> {
    let mut objects = vec![objects::service("web", &[VIP, VIP_V6])];
    objects.extend(slices(v4, v6));
    objects
}

fn slices(v4: &[Endpoint], v6: &[Endpoint]) -> [Value; 2] {
    [
        objects::slice("web", "IPv4", v4),
        objects::slice("web", "IPv6", v6),
    ]
}

/// Waits until every family has that answer.
pub(crate) fn settle(stage: &Stage, want: &Answer) -> Result<()> {
    let probes = [
        probe("pod2", VIP, Proto::Tcp)?,
        probe("client", VIP, Proto::Udp)?,
        probe("pod2", VIP_V6, Proto::Tcp)?,
    ];
    let mut last = Vec::new();
    let settled = ferry_lab::wait_until(Duration::from_secs(8), || {
        last = stage.network().replies(&probes).unwrap_or_default();
        !last.is_empty() && last.iter().flatten().all(|reply| reply.answer == *want)
    });
    ensure!(
        settled,
        "want {want:?} from all, got {last:?}\n--- ferry's log\n{}",
        stage.log()
    );
    Ok(())
}

/// 0 -> 1 -> 0 endpoints again and again: every packet is served by the endpoint or refused, at its time.
pub fn no_endpoint_one_endpoint(mode: Mode) -> Result<()> {
    let mut stage = stage(mode, &dual_stack_service(&[], &[]))?;
    settle(&stage, &Answer::Refused)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    // (from, to, answer): whatever was sent and answered between the two has that answer
    let mut calm: Vec<(Instant, Instant, Answer)> = Vec::new();
    for round in 0..10 {
        let up = round % 2 == 0;
        let (v4, v6): (&[_], &[_]) = if up { (&[POD1], &[POD1_V6]) } else { (&[], &[]) };
        stage.change(&slices(v4, v6), &[])?;
        let answer = if up { Answer::Ok } else { Answer::Refused };
        settle(&stage, &answer).with_context(|| format!("round {round}"))?;
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(200));
        calm.push((begin, Instant::now(), answer));
    }
    for (name, shots) in stop(traffic)? {
        let excused = excused(mode, &name, &shots, calm.len());
        let wrong = shots
            .iter()
            .find(|shot| is_wrong(shot, mode, &calm) && !excused(shot));
        ensure!(wrong.is_none(), "{name}: {wrong:?} of {} shots", shots.len());
        ensure!(shots.len() > 100, "{name}: only {} shots", shots.len());
    }
    stage.finish()
}

/// A connect() that waits is refused at once, wherever it comes from: a second is what it takes where the kernel drops
/// the refusal because the caller holds the socket. A service has no endpoint, and a cluster IP has a port less.
pub fn refused_at_once(mode: Mode) -> Result<()> {
    const AT_ONCE: Duration = Duration::from_millis(50);
    let mut objects = dual_stack_service(&[], &[]);
    objects[0]["spec"]["type"] = "NodePort".into();
    objects[0]["spec"]["ports"][0]["nodePort"] = 30080.into();
    let stage = stage(mode, &objects)?;
    settle(&stage, &Answer::Refused)?;
    let (all, unknown): (&[&str], &[&str]) = (
        &["10.96.9.1:80", "[fd00:10:96::91]:80", "192.0.2.10:30080"],
        &["10.96.9.1:81", "[fd00:10:96::91]:81"],
    );
    for from in ["pod2", "node", "client"] {
        // IPVS refuses by itself, with an ICMP error, what has a virtual server; packets for a port without meet our rule
        let no_endpoint = if mode == Mode::Ipvs { &[] } else { all };
        // rules of iptables and userspace mode say nothing about ports that no service has
        let no_port = if matches!(mode, Mode::Nftables | Mode::Ipvs) {
            unknown
        } else {
            &[]
        };
        for to in no_endpoint.iter().chain(no_port) {
            let at: SocketAddr = to.parse()?;
            let (refusal, after) = stage.network().host(from)?.run(|| {
                let begin = Instant::now();
                let refusal = TcpStream::connect(at).map(drop).map_err(|error| error.kind());
                (refusal, begin.elapsed())
            })?;
            let refused = refusal == Err(ErrorKind::ConnectionRefused);
            ensure!(
                refused && after < patience(AT_ONCE),
                "{from} -> {to}: {refusal:?} after {after:?}"
            );
        }
    }
    stage.finish()
}

/// Short connections of one client that comes back with the same few ports, through masquerading, while the endpoint
/// remembers each for a minute: the endpoint must not take a new connection for an old one and drop its SYN, which the
/// client repeats after a second.
pub fn short_connections(mode: Mode) -> Result<()> {
    const CONNECTIONS: u32 = 1500;
    let at: SocketAddr = format!("{}:8090", POD1.0).parse()?;
    let mut objects = vec![
        objects::service("web", &[VIP]),
        objects::slice("web", "IPv4", &[POD1]),
    ];
    objects[0]["spec"]["type"] = "NodePort".into();
    objects[0]["spec"]["ports"][0]["nodePort"] = 30080.into();
    objects[1]["ports"][0]["port"] = at.port().into();
    let stage = stage(mode, &objects)?;
    let listener = stage.network().host("pod1")?.run(|| TcpListener::bind(at))??;
    std::thread::spawn(move || {
        // It says a word and closes: the side that closes first is the one that remembers.
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"!"));
        }
    });
    // two clients with the same ports would still meet each other's leftovers behind the one address
    for (from, to, ports) in [
        ("node", "10.96.9.1:80", "20000 20399"),
        ("client", "192.0.2.10:30080", "21000 21399"),
    ] {
        let (host, to): (_, SocketAddr) = (stage.network().host(from)?, to.parse()?);
        host.sysctl("net.ipv4.ip_local_port_range", ports)?;
        let before = repeated_syns(host)?;
        let talk = || -> std::io::Result<()> {
            let mut word = Vec::new();
            TcpStream::connect(to)?.read_to_end(&mut word).map(drop)
        };
        host.run(|| (0..CONNECTIONS).try_for_each(|_| talk()))?
            .with_context(|| format!("{from} -> {to}"))?;
        let repeated = repeated_syns(host)? - before;
        // a machine that is merely slow may lose one or two
        ensure!(repeated <= 2, "{from} -> {to}: {repeated} SYNs repeated");
    }
    stage.finish()
}

/// How often hosts of this namespace asked again for a connection.
fn repeated_syns(host: &Namespace) -> Result<u64> {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))??;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = lines.next().zip(lines.next()).context("no TcpExt in netstat")?;
    let mut counters = names.split(' ').zip(values.split(' '));
    let found = counters.find(|(name, _)| *name == "TCPSynRetrans");
    found
        .context("no TCPSynRetrans")?
        .1
        .parse()
        .context("TCPSynRetrans")
}

fn is_wrong(shot: &Shot, mode: Mode, calm: &[(Instant, Instant, Answer)]) -> bool {
    let within = |from: &Instant, to: &Instant| *from <= shot.sent && shot.answered <= *to;
    if let Some((_, _, answer)) = calm.iter().find(|(from, to, _)| within(from, to)) {
        return shot.reply.answer != *answer || is_stranger(shot, &[POD1, POD1_V6]);
    }
    // iptables has no transaction over its tables: a packet between the two may find neither rule
    let lost = shot.reply.answer == Answer::Timeout && mode != Mode::Nftables;
    // a relay is connected to its client before its endpoint is found to be gone
    let reset = shot.reply.answer == Answer::Reset && mode == Mode::Userspace;
    !(shot.is_ok() || shot.reply.answer == Answer::Refused || lost || reset)
        || is_stranger(shot, &[POD1, POD1_V6])
}

/// A UDP flow is removed as soon as its endpoint goes, and an answer on its way then is lost. Where a packet takes
/// milliseconds that happens now and then: at most once a change. ipvs waits for the answer.
fn excused(mode: Mode, stream: &str, shots: &[Shot], changes: usize) -> impl Fn(&Shot) -> bool + use<> {
    let lost = shots.iter().filter(|shot| shot.is_timeout()).count();
    let may_lose = ferry_lab::is_slow() && mode != Mode::Ipvs && stream.ends_with("/udp") && lost <= changes;
    move |shot| may_lose && shot.is_timeout()
}

/// Was it answered by someone who is no endpoint of the service?
fn is_stranger(shot: &Shot, endpoints: &[Endpoint]) -> bool {
    shot.backend()
        .is_some_and(|ip| !endpoints.iter().any(|(address, _)| *address == ip.to_string()))
}

/// The pool grows, shrinks and is replaced: no packet is lost, none goes where no endpoint ever was.
pub fn scaling(mode: Mode) -> Result<()> {
    const CHANGES: usize = 18;
    let pools: [(&[Endpoint], &[Endpoint]); 6] = [
        (&[POD1, RPOD1], &[POD1_V6]),
        (&[POD1, POD2, RPOD1, RPOD2], &[POD1_V6, RPOD1_V6]),
        (&[RPOD1], &[RPOD1_V6]),
        (&[POD1, RPOD2], &[POD1_V6]),
        (&[POD1, RPOD2, RPOD1], &[POD1_V6, RPOD1_V6]),
        (&[POD2], &[RPOD1_V6]),
    ];
    let mut stage = stage(mode, &dual_stack_service(pools[0].0, pools[0].1))?;
    settle(&stage, &Answer::Ok)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    for (v4, v6) in pools.iter().cycle().take(CHANGES) {
        stage.change(&slices(v4, v6), &[])?;
        std::thread::sleep(Duration::from_millis(60));
    }
    for (name, shots) in stop(traffic)? {
        let all = [POD1, POD2, RPOD1, RPOD2, POD1_V6, RPOD1_V6];
        let excused = excused(mode, &name, &shots, CHANGES);
        let wrong = shots
            .iter()
            .find(|shot| !(shot.is_ok() || excused(shot)) || is_stranger(shot, &all));
        ensure!(
            wrong.is_none(),
            "{name}: {wrong:?} of {} shots, {} without an answer",
            shots.len(),
            shots.iter().filter(|shot| shot.is_timeout()).count()
        );
    }
    stage.finish()
}

/// `ferry` ends and starts again, gently and by force: connections live on and no new one fails.
pub fn restart(mode: Mode) -> Result<()> {
    let mut stage = stage(mode, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?;
    settle(&stage, &Answer::Ok)?;
    let talks = conversations(&stage)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    for gently in [true, false, true] {
        if gently {
            stage.stop_proxy()?;
        } else {
            stage.kill_proxy()?;
        }
        std::thread::sleep(Duration::from_millis(200));
        stage.start_proxy()?;
    }
    std::thread::sleep(Duration::from_millis(200));
    nothing_lost(stop(traffic)?)?;
    for talk in talks {
        ensure!(talk.stop()? > 50, "a connection was hardly used");
    }
    stage.finish()
}

/// Another `ferry` starts while the first one runs, and then the first is told to end: connections live on until they
/// end, and no new one fails.
pub fn handover(mode: Mode) -> Result<()> {
    let mut stage = stage(mode, &dual_stack_service(&[POD1, RPOD1], &[POD1_V6, RPOD1_V6]))?;
    settle(&stage, &Answer::Ok)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    for _ in 0..2 {
        let talks = conversations(&stage)?;
        let mut first = stage.succeed_proxy()?;
        first.signal(Signal::TERM)?;
        std::thread::sleep(Duration::from_millis(500));
        ensure!(first.is_running()?, "it ended before its connections did");
        for talk in talks {
            ensure!(talk.stop()? > 50, "a connection was hardly used");
        }
        let status = first.wait()?;
        ensure!(status.success(), "the first ferry ended with {status}");
    }
    nothing_lost(stop(traffic)?)?;
    stage.finish()
}

/// Connections that stay open, from every kind of client.
pub(crate) fn conversations(stage: &Stage) -> Result<[Conversation; 4]> {
    let talk = |from: &str, to: &str| -> Result<Conversation> {
        Conversation::start(stage.network(), from, SocketAddr::new(to.parse()?, 80))
    };
    Ok([
        talk("pod2", VIP)?,
        talk("client", VIP)?,
        talk("node", VIP)?,
        talk("client", VIP_V6)?,
    ])
}

/// The fast path where the kernel has flowtables; where it has none, everything works without, and the log says why.
pub fn fast_path(mode: Mode) -> Result<()> {
    let probe = Namespace::new("flowtables")?;
    let table = "add table ip t; add flowtable ip t f { hook ingress priority 0; devices = { lo }; }";
    if probe.sh(&format!("nft '{table}'")).is_ok() {
        return fast_path_carries(mode);
    }
    let mut stage = Stage::up(
        mode,
        &FAST_PATH.map(str::to_owned),
        &dual_stack_service(&[POD1], &[POD1_V6]),
    )?;
    settle(&stage, &Answer::Ok)?;
    let log = stage.proxy()?.tail();
    ensure!(log.contains("no fast path"), "nothing is said:\n{log}");
    stage.finish()
}

const FAST_PATH: [&str; 2] = [CLUSTER_CIDR, "--nftables-fast-path"];

/// Long connections leave the rule path and live on when their endpoint and their service go; a device that comes later
/// joins. Needs a kernel with flowtables.
pub fn fast_path_carries(mode: Mode) -> Result<()> {
    let objects = dual_stack_service(&[POD1, RPOD1], &[POD1_V6]);
    let mut stage = Stage::up(mode, &FAST_PATH.map(str::to_owned), &objects)?;
    settle(&stage, &Answer::Ok)?;
    let talks = conversations(&stage)?;
    let traffic = streams(&stage, Some(PATIENT))?;
    // The node's own connection is not forwarded; of the others each is marked once.
    let carried = |stage: &Stage| {
        let flows = stage.network().node().sh("cat /proc/net/nf_conntrack");
        flows.unwrap_or_default().matches("[OFFLOAD]").count()
    };
    ensure!(
        ferry_lab::wait_until(Duration::from_secs(20), || carried(&stage) >= 3),
        "{} connections are on the fast path\n{}",
        carried(&stage),
        stage.log()
    );
    stage.network().node().ip("link add late type dummy")?;
    let joined = || {
        let listed = stage.network().node().sh("nft list flowtables");
        listed.unwrap_or_default().matches("late").count() == 2
    };
    ensure!(
        ferry_lab::wait_until(Duration::from_secs(20), joined),
        "a new device did not join\n{}",
        stage.log()
    );
    stage.change(&slices(&[RPOD2], &[RPOD1_V6]), &[])?;
    std::thread::sleep(patience(Duration::from_millis(300)));
    for (name, shots) in stop(traffic)? {
        let excused = excused(mode, &name, &shots, 1);
        let lost = shots.iter().find(|shot| !shot.is_ok() && !excused(shot));
        ensure!(lost.is_none(), "{name}: {lost:?}");
    }
    stage.change(&[], &objects)?;
    settle(&stage, &Answer::Timeout)?;
    for talk in talks {
        ensure!(talk.stop()? > 50, "a connection was hardly used");
    }
    stage.finish()
}

/// Node ports, and external addresses that the node has, are kept from its processes (`--hold-node-ports`), and given back
/// with their service. One that a process has already is told as an event, and the service is served.
pub fn held_ports(mode: Mode) -> Result<()> {
    let mut objects = vec![
        objects::service("web", &[VIP]),
        objects::slice("web", "IPv4", &[POD1]),
    ];
    objects[0]["spec"]["type"] = "NodePort".into();
    objects[0]["spec"]["externalIPs"] = serde_json::json!(["198.51.100.10"]);
    objects[0]["spec"]["ports"][0]["nodePort"] = 30080.into();
    objects[0]["spec"]["ports"][1]["nodePort"] = 30081.into();
    let args = [CLUSTER_CIDR.to_owned(), "--hold-node-ports".to_owned()];
    let mut stage = Stage::without_proxy(mode, &args, &objects)?;
    let process = stage
        .network()
        .node()
        .run(|| UdpSocket::bind("192.0.2.10:30081"))??;
    stage.start_proxy()?;
    let replies =
        stage
            .network()
            .replies(&[Probe::new("client", "192.0.2.10".parse()?, 30080, Proto::Tcp)])?;
    ensure!(
        replies.iter().flatten().all(|reply| reply.answer == Answer::Ok),
        "{replies:?}"
    );
    let told = || {
        let taken = |event: &Value| event["reason"] == "PortTaken";
        stage.api().events().iter().filter(|event| taken(event)).count()
    };
    ensure!(
        ferry_lab::wait_until(Duration::from_secs(10), || told() == 1),
        "{} conflicts were told",
        told()
    );
    let free = |stage: &Stage, at: &str| stage.network().node().run(|| TcpListener::bind(at).is_ok());
    for at in ["192.0.2.10:30080", "198.51.100.10:80"] {
        ensure!(!free(&stage, at)?, "{at} is not held");
    }
    drop(process);
    stage.change(&[], &objects[..1])?;
    for at in ["192.0.2.10:30080", "198.51.100.10:80"] {
        ensure!(
            ferry_lab::wait_until(Duration::from_secs(10), || free(&stage, at).unwrap_or(false)),
            "{at} is still held"
        );
    }
    stage.finish()
}

pub(crate) fn nothing_lost(traffic: Vec<(String, Vec<Shot>)>) -> Result<()> {
    for (name, shots) in traffic {
        let failed = shots.iter().find(|shot| !shot.is_ok());
        let lost = shots.iter().filter(|shot| !shot.is_ok()).count();
        ensure!(
            failed.is_none(),
            "{name}: {lost} of {} lost: {failed:?}",
            shots.len()
        );
    }
    Ok(())
}

/// Someone flushes all rules: service is back within a second.
pub fn flush(mode: Mode) -> Result<()> {
    let flush = match mode {
        Mode::Nftables => "nft flush ruleset",
        Mode::Iptables | Mode::Userspace => {
            "for t in iptables ip6tables; do $t -t nat -F; $t -t nat -X; $t -F; $t -X; $t -t mangle -F; $t -t mangle -X; done"
        }
        Mode::Ipvs => "ipvsadm -C",
    };
    let mut args = vec![CLUSTER_CIDR.to_owned()];
    if mode == Mode::Userspace {
        // It looks at its rules now and then; half a minute is the default.
        args.push("--iptables-sync-period=300ms".to_owned());
    }
    let stage = Stage::up(mode, &args, &dual_stack_service(&[POD1], &[POD1_V6]))?;
    settle(&stage, &Answer::Ok)?;
    let traffic = streams(&stage, None)?;
    std::thread::sleep(Duration::from_millis(300));
    stage.network().node().sh(flush)?;
    let flushed = Instant::now();
    settle(&stage, &Answer::Ok).context("after the flush")?;
    std::thread::sleep(Duration::from_millis(300));
    let limit = at_most(Duration::from_secs(1));
    for (name, shots) in stop(traffic)? {
        let last_failure = shots
            .iter()
            .filter(|shot| !shot.is_ok())
            .map(|shot| shot.sent)
            .max();
        let down = last_failure.map_or(Duration::ZERO, |at| at.saturating_duration_since(flushed));
        ensure!(down < limit, "{name}: down for {down:?} after the flush");
    }
    stage.finish()
}

/// In seconds: short, but longer than what happens between two connections of a client, on a slow machine too.
fn sticky() -> u32 {
    patience(Duration::from_millis(2500)).as_secs().max(4) as u32
}

/// A client keeps its endpoint for the service's time after its last connection, and while the endpoint lives.
pub fn affinity(mode: Mode) -> Result<()> {
    let mut pool = vec![POD1, POD2, RPOD1, RPOD2];
    let sticky = sticky();
    let objects = [
        objects::sticky_service("web", VIP, sticky),
        objects::slice("web", "IPv4", &pool),
    ];
    let mut stage = stage(mode, &objects)?;
    let clients: Vec<IpAddr> = (150..162).map(|n| IpAddr::from([192, 0, 2, n])).collect();
    for client in &clients {
        stage
            .network()
            .host("client")?
            .ip(&format!("addr add {client}/24 dev eth0"))?;
    }
    let first = learn(&stage, &clients)?;
    let used: BTreeSet<&IpAddr> = first.values().collect();
    ensure!(used.len() > 1, "{} clients all got {used:?}", clients.len());
    keep(&stage, &clients, &first, sticky)?;
    // ipvs remembers a client as long as the kernel remembers any of its connections, which is minutes
    if mode != Mode::Ipvs {
        std::thread::sleep(Duration::from_secs(u64::from(sticky)) + patience(Duration::from_millis(1500)));
        let later = learn(&stage, &clients)?;
        ensure!(
            later != first,
            "after its time no client of {} was spread anew",
            clients.len()
        );
    }
    let before = learn(&stage, &clients)?;
    let gone = before[&clients[0]];
    pool.retain(|(address, _)| *address != gone.to_string());
    stage.change(&[objects::slice("web", "IPv4", &pool)], &[])?;
    let moved = |now: &BTreeMap<IpAddr, IpAddr>| now.values().all(|backend| *backend != gone);
    let mut now = BTreeMap::new();
    let left = ferry_lab::wait_until(Duration::from_secs(3), || {
        now = learn(&stage, &clients).unwrap_or_default();
        !now.is_empty() && moved(&now)
    });
    ensure!(
        left,
        "clients still go to {gone}, which is no endpoint any more: {now:?}"
    );
    let strayed = before
        .iter()
        .find(|(client, backend)| **backend != gone && now[*client] != **backend);
    ensure!(
        strayed.is_none(),
        "{strayed:?} moved although its endpoint lives: {now:?}"
    );
    stage.finish()
}

/// Which endpoint each client has; an error if one has two.
fn learn(stage: &Stage, clients: &[IpAddr]) -> Result<BTreeMap<IpAddr, IpAddr>> {
    let to = VIP.parse()?;
    let probes: Vec<Probe> = clients
        .iter()
        .map(|client| Probe {
            bind: Some(*client),
            ..Probe::new("client", to, 80, Proto::Tcp).times(4)
        })
        .collect();
    let mut found = BTreeMap::new();
    for (client, replies) in clients.iter().zip(stage.network().replies(&probes)?) {
        let backends: BTreeSet<Option<IpAddr>> = replies
            .iter()
            .map(|r| r.seen.as_ref().map(|(at, _)| at.ip()))
            .collect();
        match backends.into_iter().collect::<Vec<_>>().as_slice() {
            [Some(one)] => found.insert(*client, *one),
            _ => bail!("{client} has no one endpoint: {replies:?}"),
        };
    }
    Ok(found)
}

/// Connects every second for longer than the affinity's time: each connection renews it.
fn keep(stage: &Stage, clients: &[IpAddr], first: &BTreeMap<IpAddr, IpAddr>, sticky: u32) -> Result<()> {
    let begin = Instant::now();
    let mut last = begin;
    while begin.elapsed() < Duration::from_secs(u64::from(sticky) + 2) {
        std::thread::sleep(Duration::from_secs(1));
        let now = learn(stage, clients)?;
        // a machine that stood still for so long proves nothing
        ensure!(
            last.elapsed() < Duration::from_secs(u64::from(sticky)),
            "the machine is too slow for this case"
        );
        ensure!(
            now == *first,
            "a client changed its endpoint in time: {first:?} {now:?}"
        );
        last = Instant::now();
    }
    Ok(())
}
