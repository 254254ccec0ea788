//! `--live`: the kernel's own word about a packet, rule by rule through every table, and the probe that makes one.
//! Adds a table of its own for as long as it watches, and nothing else.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use ferry_host::nftables::{Error, Followed, Sent, TraceEvent, TraceVerdict, Traced, Tracing};
use ferry_host::route::Route;
use serde::{Deserialize, Serialize};

use super::report::{ExplainReport, FindingReport, FindingWeight};

/// Packets of which the way is shown.
const PACKETS: usize = 3;
/// How long a probe waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after a probe the kernel may still tell about it.
const GRACE: Duration = Duration::from_millis(200);

/// What is to be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) to: SocketAddr,
    pub(crate) protocol: Transport,
    pub(crate) from: Sender,
    pub(crate) time: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "udp" => Self::Udp,
            "sctp" => Self::Sctp,
            _ => Self::Tcp,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// Whose packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Ours: a probe is sent.
    Probe,
    Node,
    Outside,
    Address(IpAddr),
    Anybody,
}

/// What the kernel told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveReport {
    pub watched: String,
    pub seconds: f64,
    /// How a probe ended, where one was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    pub packets: Vec<PacketReport>,
    /// What the kernel does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

/// One packet's way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketReport {
    pub steps: Vec<LiveStep>,
    pub dropped: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveStep {
    /// Family and name.
    pub table: String,
    pub chain: String,
    /// The packet's ends, where they are shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// The rule in words; absent at a chain's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    pub verdict: String,
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Probed {
    Answered,
    Refused,
    Silent,
    Failed(String),
}

/// Watches, and says what it means for the verdict.
pub(crate) fn watch(watch: &Watch, mode: &str) -> Result<(LiveReport, Vec<FindingReport>), Error> {
    let followed = Followed {
        source: match watch.from {
            Sender::Address(address) => Some(address),
            Sender::Probe | Sender::Node | Sender::Outside | Sender::Anybody => None,
        },
        destination: watch.to,
        protocol: watch.protocol.number(),
        sent: match watch.from {
            Sender::Probe | Sender::Node => Sent::Here,
            Sender::Outside => Sent::Elsewhere,
            Sender::Address(_) | Sender::Anybody => Sent::Anywhere,
        },
    };
    let started = Instant::now();
    let mut tracing = Tracing::start(&followed, watch.time)?;
    let mut seen: Vec<Traced> = Vec::new();
    let probed = match watch.from {
        Sender::Probe => {
            let (to, protocol) = (watch.to, watch.protocol);
            // In this thread's network namespace, and over before the answer is read.
            let probed = std::thread::scope(|scope| scope.spawn(|| probe(to, protocol)).join());
            let probed = probed.unwrap_or_else(|_| Probed::Failed("the probe panicked".into()));
            tracing.receive_until(Instant::now() + GRACE, |traced| seen.push(traced))?;
            Some(probed)
        }
        Sender::Node | Sender::Outside | Sender::Address(_) | Sender::Anybody => {
            tracing.receive_until(started + watch.time, |traced| seen.push(traced))?;
            None
        }
    };
    let packets = packets(&mut tracing, &seen)?;
    let report = LiveReport {
        watched: format!("{}/{:?}", watch.to, watch.protocol).to_lowercase(),
        seconds: started.elapsed().as_secs_f64(),
        probe: probed.as_ref().map(Probed::to_string),
        packets,
        limits: limits(mode),
    };
    let findings = judge(&report, probed.as_ref(), watch);
    Ok((report, findings))
}

/// The way of the first packets.
fn packets(tracing: &mut Tracing, seen: &[Traced]) -> Result<Vec<PacketReport>, Error> {
    let links = Route::open()
        .and_then(|mut route| route.links())
        .unwrap_or_default();
    let name = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        link.map_or_else(|| index.to_string(), |link| link.name.clone())
    };
    let own = tracing.table().to_owned();
    let mut order: Vec<u32> = Vec::new();
    let mut by_packet: BTreeMap<u32, PacketReport> = BTreeMap::new();
    for traced in seen.iter().filter(|traced| traced.table != own) {
        if !order.contains(&traced.packet) {
            if order.len() == PACKETS {
                continue;
            }
            order.push(traced.packet);
        }
        let packet = by_packet.entry(traced.packet).or_default();
        let mut step = LiveStep {
            table: format!("{} {}", traced.family_name(), traced.table),
            chain: traced.chain.clone(),
            packet: traced.ends.map(|(source, destination)| {
                let by = |word: &str, index: Option<u32>| match index {
                    Some(index) => format!(" {word} {}", name(index)),
                    None => String::new(),
                };
                let (input, output) = (by("in by", traced.input), by("out by", traced.output));
                format!("{source} -> {destination}{input}{output}")
            }),
            rule: None,
            handle: None,
            comment: None,
            verdict: words(&traced.verdict, traced.event),
        };
        if let TraceEvent::Rule(handle) = traced.event {
            let rule = tracing.rule(traced.family, &traced.table, &traced.chain, handle)?;
            step.handle = Some(handle);
            step.comment = rule
                .as_ref()
                .and_then(|rule| rule.comment.as_deref().map(str::to_owned));
            step.rule = Some(rule.map_or_else(|| "a rule that is gone".into(), |rule| rule.to_string()));
        }
        packet.dropped |= traced.verdict == TraceVerdict::Drop;
        packet.steps.push(step);
    }
    Ok(order.iter().filter_map(|id| by_packet.remove(id)).collect())
}

fn words(verdict: &TraceVerdict, event: TraceEvent) -> String {
    let word = match verdict {
        TraceVerdict::Accept => "accept".into(),
        TraceVerdict::Drop => "drop".into(),
        TraceVerdict::Continue => "continue".into(),
        TraceVerdict::Jump(chain) => format!("jump {chain}"),
        TraceVerdict::Goto(chain) => format!("goto {chain}"),
        TraceVerdict::Return => "return".into(),
        TraceVerdict::Elsewhere => "taken over".into(),
    };
    match event {
        TraceEvent::Policy => format!("policy {word}"),
        TraceEvent::Rule(_) | TraceEvent::Return => word,
    }
}

fn probe(to: SocketAddr, protocol: Transport) -> Probed {
    let outcome = |error: std::io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => Probed::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Probed::Silent,
        _ => Probed::Failed(error.to_string()),
    };
    match protocol {
        Transport::Tcp => {
            TcpStream::connect_timeout(&to, PROBE_TIMEOUT).map_or_else(outcome, |_| Probed::Answered)
        }
        Transport::Udp => ask_by_datagram(to).map_or_else(outcome, |()| Probed::Answered),
        Transport::Sctp => Probed::Failed("there is no probe for sctp".into()),
    }
}

fn ask_by_datagram(to: SocketAddr) -> std::io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PROBE_TIMEOUT))?;
    socket.send(b"ferry explain\n")?;
    socket.recv(&mut [0; 1]).map(drop)
}

impl std::fmt::Display for Probed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Probed::Answered => f.write_str("answered"),
            Probed::Refused => f.write_str("refused"),
            Probed::Silent => write!(f, "no answer within {} s", PROBE_TIMEOUT.as_secs()),
            Probed::Failed(why) => f.write_str(why),
        }
    }
}

/// What is not told, by mode and by what else is on the node.
fn limits(mode: &str) -> Vec<String> {
    let mut limits = Vec::new();
    let legacy = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let legacy = legacy
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    let legacy: Vec<String> = legacy
        .flat_map(|names| names.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    if !legacy.is_empty() {
        limits.push(format!(
            "legacy iptables has tables here ({}): the kernel does not tell what their rules do; `iptables-legacy-save -c` \
             shows them with counters",
            legacy.join(", ")
        ));
    }
    match mode {
        "ipvs" => limits.push(
            "IPVS tells nothing: the packet is seen until it is scheduled, and its successor after that is another one; \
             `ipvsadm -Lcn` shows which real server it went to"
                .into(),
        ),
        "userspace" => limits.push(
            "the relay ends the client's connection: what is seen is its way to the relay, not the relay's own connection \
             to the endpoint"
                .into(),
        ),
        _ => {}
    }
    limits
}

/// What was seen, as findings; the kernel's word goes before everybody's.
fn judge(report: &LiveReport, probed: Option<&Probed>, watch: &Watch) -> Vec<FindingReport> {
    if let Some(step) = report
        .packets
        .iter()
        .find(|packet| packet.dropped)
        .and_then(|packet| packet.steps.iter().find(|step| step.verdict.ends_with("drop")))
    {
        return vec![dropped(step)];
    }
    let blocks = |cause, says: String, remedy: &str| {
        vec![FindingReport::new(cause, FindingWeight::Blocks, says, remedy)]
    };
    match probed {
        Some(Probed::Answered) => Vec::new(),
        Some(Probed::Refused) => blocks(
            "probe-refused",
            format!(
                "the probe to {} was refused, and no rule of this node did it",
                watch.to
            ),
            "look whether the program in the pod listens on the targetPort, on all addresses",
        ),
        Some(Probed::Silent) => blocks(
            "probe-silent",
            format!(
                "the probe to {} had no answer, and no rule of this node dropped it",
                watch.to
            ),
            "look at the endpoint's node and at what is on the way there: the packet left this node, or no answer came back",
        ),
        Some(Probed::Failed(why)) => blocks(
            "probe-failed",
            format!("the probe to {} could not be sent: {why}", watch.to),
            "look at the routes of this node",
        ),
        None if report.packets.is_empty() => vec![FindingReport::new(
            "nothing-seen",
            FindingWeight::Doubt,
            format!(
                "no packet to {} was seen within {:.0} s, so nothing can be said of its way",
                watch.to, report.seconds
            ),
            "let the client send while this watches (--seconds), or probe from here with --send",
        )],
        None => Vec::new(),
    }
}

fn dropped(step: &LiveStep) -> FindingReport {
    let LiveStep { table, chain, .. } = step;
    let comment = step.comment.as_ref().map(|text| format!(" (comment {text:?})"));
    let comment = comment.unwrap_or_default();
    let place = format!("table {table}, chain {chain}");
    let says = match (&step.rule, step.handle) {
        (Some(rule), Some(handle)) => {
            format!("the packet was dropped in {place} by rule {handle}: {rule}{comment}")
        }
        _ => format!("the packet was dropped in {place} by the chain's policy"),
    };
    let ours = table.ends_with(" kube-proxy") || chain.starts_with("KUBE-");
    if ours {
        return FindingReport::new(
            "dropped-here",
            FindingWeight::Blocks,
            says,
            "this is the proxy's own rule: the plan's part says why",
        );
    }
    let remedy = format!("change that rule, or ask whoever wrote table {table}: it is not this proxy's");
    FindingReport::new("foreign-drop", FindingWeight::Blocks, says, remedy)
}

impl ExplainReport {
    /// Adds what was seen.
    pub(crate) fn add_live(&mut self, live: LiveReport, findings: Vec<FindingReport>) {
        self.live = Some(live);
        self.add_first(findings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_is_told_with_table_chain_rule_and_comment() {
        let step = LiveStep {
            table: "inet corp".into(),
            chain: "guard".into(),
            packet: None,
            rule: Some("ip daddr 10.244.1.2 drop".into()),
            handle: Some(4),
            comment: Some("no pods".into()),
            verdict: "drop".into(),
        };
        let finding = dropped(&step);
        assert_eq!(finding.cause, "foreign-drop");
        assert_eq!(
            finding.says,
            "the packet was dropped in table inet corp, chain guard by rule 4: ip daddr 10.244.1.2 drop (comment \"no pods\")"
        );
        let own = LiveStep {
            table: "ip kube-proxy".into(),
            rule: None,
            handle: None,
            ..step
        };
        let finding = dropped(&own);
        assert_eq!(finding.cause, "dropped-here");
        assert!(
            finding.says.ends_with("by the chain's policy"),
            "{}",
            finding.says
        );
    }
}
