//! `ferry explain` on the node: situations that are broken on purpose, each with the cause and the remedy that it must
//! name. One network and one cluster serve them all; what a case breaks in the kernel it mends again.

use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferry_lab::api::generate::Cluster;
use ferry_lab::at_most;
use ferry_lab::netns::{Answer, Probe, Proto};
use serde_json::{Value, json};

use crate::objects::{self, CLUSTER_CIDR, Endpoint, POD1, RPOD1};
use crate::{Mode, Stage, program};

const WEB: &str = "10.96.8.3";
const CLIENT: &str = "192.0.2.100";

/// What `ferry explain` must say.
#[derive(Debug)]
struct Want {
    /// Its arguments.
    ask: &'static str,
    /// 0 reachable, 1 not, 2 cannot tell.
    exit: i32,
    cause: &'static str,
    /// Parts of the sentence and of the remedy.
    says: &'static str,
    remedy: &'static str,
}

/// The cluster: one service that works, and one for each way in which objects can be wrong.
fn cluster() -> Vec<Value> {
    let plain = |name: &str, ip: &str, endpoints: &[Endpoint]| {
        vec![
            objects::service(name, &[ip]),
            objects::slice(name, "IPv4", endpoints),
        ]
    };
    let mut all = plain("web", WEB, &[POD1, RPOD1]);
    all[0]["spec"]["type"] = "NodePort".into();
    all[0]["spec"]["ports"][0]["nodePort"] = 30080.into();
    all.push(objects::service("none", &["10.96.8.1"]));
    let mut unready = plain("unready", "10.96.8.2", &[POD1, RPOD1]);
    for endpoint in unready[1]["endpoints"].as_array_mut().into_iter().flatten() {
        endpoint["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    }
    let mut nameless = plain("nameless", "10.96.8.4", &[POD1]);
    nameless[1]["ports"] = json!([]);
    let mut local = plain("local", "10.96.8.5", &[RPOD1]);
    local[0]["spec"]["type"] = "NodePort".into();
    local[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    local[0]["spec"]["ports"][0]["nodePort"] = 30085.into();
    let mut zoned = plain("zoned", "10.96.8.6", &[RPOD1]);
    zoned[1]["endpoints"][0]["hints"] = json!({"forZones": [{"name": "zone-b"}]});
    let mut guarded = plain("guarded", "10.96.8.7", &[POD1]);
    guarded[0]["spec"]["type"] = "LoadBalancer".into();
    guarded[0]["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    guarded[0]["status"]["loadBalancer"]["ingress"] = json!([{"ip": "203.0.113.80"}]);
    let lost = plain("lost", "10.96.8.13", &[("10.250.0.9", "node-b")]);
    let mut first = plain("first", "10.96.8.14", &[POD1]);
    let mut second = plain("second", "10.96.8.15", &[POD1]);
    for (service, created) in [
        (&mut first, "2026-01-01T00:00:00Z"),
        (&mut second, "2026-02-01T00:00:00Z"),
    ] {
        service[0]["spec"]["externalIPs"] = json!(["203.0.113.99"]);
        service[0]["metadata"]["creationTimestamp"] = created.into();
    }
    for more in [unready, nameless, local, zoned, guarded, lost, first, second] {
        all.extend(more);
    }
    all
}

/// What is wrong with objects or configuration: nothing has to be broken on the node.
const WRONG_OBJECTS: [Want; 10] = [
    Want {
        ask: "default/none",
        exit: 1,
        cause: "no-endpoints",
        says: "has no endpoints: it has no EndpointSlice",
        remedy: "spec.selector of Service default/none",
    },
    Want {
        ask: "default/unready",
        exit: 1,
        cause: "all-unready",
        says: "none of the 2 endpoint(s)",
        remedy: "readiness probe",
    },
    Want {
        ask: "default/web:8080",
        exit: 1,
        cause: "wrong-port",
        says: "has no port 8080; it has 80/tcp (tcp), 80/udp (udp)",
        remedy: "80/tcp (tcp), 80/udp (udp)",
    },
    Want {
        ask: "default/nameless",
        exit: 1,
        cause: "target-port-missing",
        says: "EndpointSlice default/nameless-ipv4 has none",
        remedy: "targetPort of that port of Service default/nameless",
    },
    Want {
        ask: "192.0.2.10:30085 --from outside",
        exit: 1,
        cause: "no-local-endpoint",
        says: "spec.externalTrafficPolicy of default/local:tcp is Local and this node has no usable endpoint",
        remedy: "run a pod here, or set spec.externalTrafficPolicy of Service default/local to Cluster",
    },
    Want {
        ask: "default/zoned",
        exit: 0,
        cause: "hints-unused",
        says: "no ready endpoint is meant for zone zone-a (hints: zone-b)",
        remedy: "run a ready pod in this zone",
    },
    Want {
        ask: "203.0.113.80:80/tcp --from 192.0.2.100",
        exit: 1,
        cause: "source-range",
        says: "192.0.2.100 is outside spec.loadBalancerSourceRanges (198.51.100.0/24)",
        remedy: "add 192.0.2.100 to spec.loadBalancerSourceRanges of Service default/guarded",
    },
    Want {
        ask: "198.51.100.10:30080 --from outside",
        exit: 1,
        cause: "node-port-address",
        says: "are not answered at 198.51.100.10",
        remedy: "use 192.0.2.10, or widen --nodeport-addresses",
    },
    Want {
        ask: "default/lost:tcp",
        exit: 1,
        cause: "endpoint-not-routed",
        says: "this node has no way to 1 of 1 endpoint(s) of default/lost:tcp; first: 10.250.0.9",
        remedy: "ip route get 10.250.0.9",
    },
    Want {
        ask: "default/second",
        exit: 1,
        cause: "contested",
        says: "default/second:tcp asks for 203.0.113.99:80 as its external IP, but default/first:tcp has it already",
        remedy: "give Service default/second another address or port, or delete default/first",
    },
];

fn stage(mode: Mode) -> Result<Stage> {
    let args = [
        CLUSTER_CIDR.to_owned(),
        "--nodeport-addresses=192.0.2.0/24".to_owned(),
    ];
    let stage = Stage::up(mode, &args, &cluster())?;
    // Nothing but a default route may lead there, and the lab has one.
    stage.network().node().ip("route add unreachable 10.250.0.0/16")?;
    Ok(stage)
}

fn explain(stage: &Stage, ask: &str) -> Result<(i32, Value, Output)> {
    let mut command = stage.network().node().command(program()?);
    command.arg("explain").args(ask.split(' '));
    let socket = stage.dir().join("status.sock");
    command.arg(format!("--socket={}", socket.display()));
    let output = command
        .args(["-o", "json"])
        .env_remove("RUST_BACKTRACE")
        .output()?;
    let code = output.status.code().context("explain was killed")?;
    let report = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "explain {ask}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    })?;
    Ok((code, report, output))
}

fn check(stage: &Stage, want: &Want) -> Result<()> {
    let (code, report, _) = explain(stage, want.ask)?;
    let shown = || {
        format!(
            "explain {}: {report:#}\n--- ferry's log\n{}",
            want.ask,
            stage.log()
        )
    };
    ensure!(
        code == want.exit,
        "exit status {code} instead of {}\n{}",
        want.exit,
        shown()
    );
    let finding = &report["findings"][0];
    ensure!(finding["cause"] == want.cause, "not {}\n{}", want.cause, shown());
    let has = |field: &str, part: &str| finding[field].as_str().is_some_and(|text| text.contains(part));
    ensure!(has("says", want.says), "{:?} is not said\n{}", want.says, shown());
    ensure!(
        has("remedy", want.remedy),
        "{:?} is no remedy\n{}",
        want.remedy,
        shown()
    );
    Ok(())
}

/// The service that works is said to work, and does.
fn works(stage: &Stage) -> Result<()> {
    let (code, report, _) = explain(stage, "default/web")?;
    ensure!(code == 0, "exit status {code}: {report:#}");
    let answer = reach(stage, Proto::Tcp)?;
    ensure!(answer == Answer::Ok, "the client gets {answer:?}");
    Ok(())
}

fn reach(stage: &Stage, proto: Proto) -> Result<Answer> {
    let probe = Probe::new("client", WEB.parse()?, 80, proto);
    let replies = stage.network().replies(&[probe])?;
    let reply = replies.into_iter().flatten().next();
    Ok(reply.context("no reply")?.answer)
}

/// Every wrong object, in one mode.
pub fn wrong_objects(mode: Mode) -> Result<()> {
    let stage = stage(mode)?;
    works(&stage)?;
    // In ipvs mode a Local policy falls back to the endpoints of the cluster.
    let differs = |want: &&Want| mode == Mode::Ipvs && want.cause == "no-local-endpoint";
    for want in WRONG_OBJECTS.iter().filter(|want| !differs(want)) {
        check(&stage, want)?;
    }
    stage.finish()
}

/// What is broken on the node itself, though every object is right.
pub fn broken_node(mode: Mode) -> Result<()> {
    let stage = stage(mode)?;
    works(&stage)?;
    let node = stage.network().node();
    if mode != Mode::Userspace {
        node.sysctl("net.ipv4.ip_forward", "0")?;
        ensure!(reach(&stage, Proto::Tcp)? != Answer::Ok, "it is still reached");
        check(
            &stage,
            &Want {
                ask: "default/web --from 192.0.2.100",
                exit: 1,
                cause: "forwarding-off",
                says: "net.ipv4.ip_forward is 0",
                remedy: "sysctl -w net.ipv4.ip_forward=1",
            },
        )?;
        node.sysctl("net.ipv4.ip_forward", "1")?;
        stale_flow(&stage)?;
    }
    works(&stage)?;
    silent_server(&stage)?;
    removed_rules(&stage)?;
    stage.finish()
}

/// A rule that is not ours and drops: the kernel itself names it, on the way out of the node and through it.
pub fn foreign_drop(mode: Mode) -> Result<()> {
    let stage = stage(mode)?;
    let node = stage.network().node();
    let (code, report, _) = explain(&stage, "default/web:tcp --live --send")?;
    ensure!(code == 0, "exit status {code}: {report:#}");
    ensure!(report["live"]["probe"] == "answered", "{report:#}");
    let way = report["live"]["packets"][0]["steps"].as_array();
    let table = match mode {
        Mode::Nftables => "ip kube-proxy",
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => "ip nat",
    };
    let passed = way.into_iter().flatten().any(|step| step["table"] == table);
    ensure!(passed, "the way through our own table is not shown: {report:#}");

    node.sh("nft -f - <<'END'\n\
             table inet corp {\n\
               chain leaving { type filter hook output priority 10; ip daddr 10.244.0.0/16 tcp dport 8080 \
                 counter drop comment \"nobody talks to pods\"; }\n\
             }\nEND")?;
    let seen = Want {
        ask: "default/web:tcp --live --send",
        exit: 1,
        cause: "foreign-drop",
        says: "the packet was dropped in table inet corp, chain leaving by rule ",
        remedy: "ask whoever wrote table inet corp: it is not this proxy's",
    };
    check(&stage, &seen)?;
    check(
        &stage,
        &Want {
            says: "th dport 8080 counter drop (comment \"nobody talks to pods\")",
            ..seen
        },
    )?;
    node.sh("nft delete table inet corp")?;
    node.sh("iptables -I FORWARD -s 192.0.2.100 -m comment --comment 'ticket 4711' -j DROP")?;
    let want = Want {
        ask: "default/web:tcp --from 192.0.2.100 --live --seconds 2",
        exit: 1,
        cause: "foreign-drop",
        says: "(comment \"ticket 4711\")",
        remedy: "table ip filter",
    };
    let answered = std::thread::scope(|scope| {
        let asking = scope.spawn(|| check(&stage, &want));
        while !asking.is_finished() {
            // Long enough for the first packet; whoever drops it does not answer.
            let mut probe = Probe::new("client", WEB.parse()?, 80, Proto::Tcp);
            probe.limit = Some(Duration::from_millis(300));
            stage.network().replies(&[probe])?;
        }
        asking
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    answered?;
    leaves_nothing(&stage)?;
    stage.finish()
}

/// A watch that is killed takes its table along.
fn leaves_nothing(stage: &Stage) -> Result<()> {
    let node = stage.network().node();
    let tables = || node.sh("nft list tables");
    let socket = format!("--socket={}", stage.dir().join("status.sock").display());
    let mut command = node.command(program()?);
    command.args(["explain", "default/web:tcp", "--live", "--seconds=60", &socket]);
    let mut watching = command.stdout(std::process::Stdio::null()).spawn()?;
    let has_table = || tables().is_ok_and(|tables| tables.contains("ferry-explain"));
    let began = ferry_lab::wait_until(Duration::from_secs(10), has_table);
    watching.kill()?;
    watching.wait()?;
    ensure!(began, "no table while it watches: {}", tables()?);
    let gone = ferry_lab::wait_until(Duration::from_secs(5), || !has_table());
    ensure!(gone, "left behind: {}", tables()?);
    Ok(())
}

/// Ten thousand services do not make one question slower than a person notices. The best of five counts: this machine may
/// be busy.
pub fn many_services(mode: Mode) -> Result<()> {
    const LIMIT: Duration = Duration::from_millis(200);
    let cluster = Cluster {
        services: 10_000,
        endpoints: 3,
    };
    let objects: Vec<Value> = cluster.objects().collect();
    let stage = Stage::up(mode, &[CLUSTER_CIDR.to_owned()], &objects)?;
    let ask = format!("{}:80", cluster.cluster_ip(7777));
    // What comes after the first sync may take its time.
    let ready = ferry_lab::wait_until(Duration::from_secs(20), || explain(&stage, &ask).is_ok());
    ensure!(ready, "no answer\n{}", stage.log());
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let (_, report, _) = explain(&stage, &ask)?;
        best = best.min(started.elapsed());
        let endpoints = report["places"][0]["endpoints"].as_array().map(Vec::len);
        ensure!(endpoints == Some(3), "{report:#}");
        let checks = report["kernel"]["checks"].as_array();
        let present = checks
            .into_iter()
            .flatten()
            .filter(|check| check["state"] == "present");
        ensure!(present.count() > 5, "the kernel was not read: {report:#}");
    }
    ensure!(best < at_most(LIMIT), "{best:?} at 10,000 services");
    println!("{}: {best:?} at 10,000 services", mode.as_str());
    stage.finish()
}

/// A flow of a client's datagrams that leads to a pod which is none of the service's.
fn stale_flow(stage: &Stage) -> Result<()> {
    let node = stage.network().node();
    node.sh(&format!(
        "conntrack -I -p udp -s {CLIENT} -d {WEB} --sport 5555 --dport 80 -r 10.244.9.9 -q {CLIENT} \
         --reply-port-src 8080 --reply-port-dst 5555 --timeout 60 -u SEEN_REPLY"
    ))?;
    check(
        stage,
        &Want {
            ask: "default/web:udp --from 192.0.2.100",
            exit: 1,
            cause: "stale-conntrack",
            says: "first: 192.0.2.100:5555 -> 10.96.8.3:80, answered by 10.244.9.9:8080",
            remedy: "conntrack -D -p udp --orig-dst 10.96.8.3 --orig-port-dst 80",
        },
    )?;
    // The remedy is one.
    node.sh("conntrack -D -p udp --orig-dst 10.96.8.3 --orig-port-dst 80")?;
    let (code, report, _) = explain(stage, "default/web:udp --from 192.0.2.100")?;
    ensure!(code == 0, "still stale: {report:#}");
    Ok(())
}

/// An API server that does not answer: what is known may be old.
fn silent_server(stage: &Stage) -> Result<()> {
    stage.api().pause();
    let want = Want {
        ask: "default/web",
        exit: 2,
        cause: "source-silent",
        says: "has not been heard since",
        remedy: "reachable from this node; until then what is in force stays",
    };
    let said = ferry_lab::wait_until(Duration::from_secs(10), || check(stage, &want).is_ok());
    if !said {
        check(stage, &want)?;
    }
    stage.api().resume()?;
    let recovered = ferry_lab::wait_until(Duration::from_secs(20), || works(stage).is_ok());
    ensure!(recovered, "not well again\n{}", stage.log());
    Ok(())
}

/// Somebody who removes the rules as often as they are put back.
fn removed_rules(stage: &Stage) -> Result<()> {
    let node = stage.network().node();
    let remove = match stage.mode() {
        Mode::Nftables => "nft delete table ip kube-proxy",
        Mode::Iptables | Mode::Ipvs => "iptables -t nat -F KUBE-SERVICES",
        // Its sockets are its own; nobody else can close them.
        Mode::Userspace => return Ok(()),
    };
    let mut vandal = node
        .command("sh")
        .args(["-c", &format!("while :; do {remove}; sleep 0.01; done")])
        .stderr(std::process::Stdio::null())
        .spawn()?;
    let want = Want {
        ask: "default/web",
        exit: 1,
        cause: "rules-missing",
        says: "somebody removed or changed rules",
        remedy: "`ferry status` names the last repair",
    };
    let said = ferry_lab::wait_until(Duration::from_secs(10), || check(stage, &want).is_ok());
    vandal.kill()?;
    vandal.wait()?;
    if !said {
        check(stage, &want)?;
    }
    let repaired = ferry_lab::wait_until(Duration::from_secs(15), || works(stage).is_ok());
    ensure!(repaired, "not repaired\n{}", stage.log());
    Ok(())
}
