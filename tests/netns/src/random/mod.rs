//! Random clusters that change at random: after every change packets do what `trace` says.
//!
//! The backend is driven directly, without a daemon, so that thousands of changes take a minute. A case is a
//! seed; the same seed gives the same sequence, and a failure names it.

mod cluster;

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferry_backends::{Backend, iptables, ipvs, nftables};
use ferry_lab::netns::{Answer, Network, Probe, Reply};
use ferry_model::{Action, Family, Origin, Outcome, Packet, Planner, Policy, Protocol, Target, trace};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::Mode;
use cluster::Cluster;

/// Networks that work at the same time.
const WORKERS: u64 = 4;
/// Changes of one sequence.
const STEPS: usize = 4;
/// Packets after each change.
const PROBES: usize = 10;
/// An answer that does not come in this time is not coming.
const SILENCE: Duration = Duration::from_millis(150);

/// Failures that are told; more help nobody.
const TOLD: usize = 3;

/// Runs the sequences 0 to `count`.
pub fn sequences(mode: Mode, count: u64) -> Result<()> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        let network = Network::up()?;
        // the backend writes to the kernel of the thread that calls it; probes have sockets of their own
        network.node().enter()?;
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let failures = || failures.lock().unwrap_or_else(PoisonError::into_inner);
            if seed >= count || failures().len() >= TOLD {
                return Ok(());
            }
            if let Err(e) = sequence(mode, seed, &network) {
                failures().push(format!("sequence {seed}: {e:#}"));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().try_for_each(join)
    })?;
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("{}", failures.join("\n\n"))
    }
}

fn backend(mode: Mode, record: &Path) -> Result<(Policy, Box<dyn Backend>)> {
    let alarm: ferry_backends::Alarm = Arc::new(|| {});
    Ok(match mode {
        Mode::Nftables => {
            let backend = nftables::Nftables::open(nftables::Options::default(), alarm)?;
            (
                Policy::nftables().without_localhost_node_ports(),
                Box::new(backend),
            )
        }
        Mode::Iptables => {
            let backend = iptables::Iptables::open(iptables::Options::default(), alarm);
            (
                Policy::iptables().without_localhost_node_ports(),
                Box::new(backend),
            )
        }
        Mode::Ipvs => {
            let options = ipvs::Options {
                record: record.to_owned(),
                ..ipvs::Options::default()
            };
            (Policy::ipvs(), Box::new(ipvs::Ipvs::open(options, alarm)?))
        }
        Mode::Userspace => bail!("{} has no sequences here", mode.as_str()),
    })
}

fn sequence(mode: Mode, seed: u64, network: &Network) -> Result<()> {
    // All sequences have the same addresses: a client that meets a source port again would be led where its last
    // connection went, in another sequence.
    network.node().sh("conntrack -F")?;
    let record = tempfile::tempdir()?;
    let (policy, mut backend) = backend(mode, record.path())?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut planner = Planner::new(cluster::options(policy)?);
    planner.update(cluster::node_events()?);
    let mut cluster = Cluster::default();
    for step in 0..STEPS {
        let events = cluster.change(&mut rng);
        let shown = format!("step {step}: {events:?}");
        planner.update(events);
        for family in [Family::V4, Family::V6] {
            backend
                .apply(planner.plan(), family)
                .with_context(|| shown.clone())?;
        }
        let questions: Vec<Question> = (0..PROBES)
            .map(|_| Question::random(&mut rng, &cluster, &planner))
            .collect::<Result<_>>()?;
        let probes: Vec<Probe> = questions.iter().map(|q| q.probe.clone()).collect();
        for (question, replies) in questions.iter().zip(network.replies(&probes)?) {
            question.judge(&replies).with_context(|| shown.clone())?;
        }
    }
    backend.cleanup()?;
    Ok(())
}

/// A packet, and what the specification says about it.
struct Question {
    probe: Probe,
    source: IpAddr,
    outcome: Outcome,
    local_destination: bool,
    /// The mode may send what it does not masquerade to another node.
    may_go_astray: bool,
}

impl Question {
    fn random(rng: &mut StdRng, cluster: &Cluster, planner: &Planner) -> Result<Question> {
        let (to, port, proto) = cluster.destination(rng);
        let senders = cluster::SENDERS;
        let (from, v4, v6) = senders[rng.random_range(0..senders.len())];
        let plan = planner.plan();
        // an address that the node has itself is reached from itself
        let bound = from == "node" && plan.node().binds_service_addresses && plan.is_service_address(to);
        let source: IpAddr = match to {
            to if bound => to,
            IpAddr::V6(_) => v6.parse()?,
            IpAddr::V4(_) => v4.parse()?,
        };
        let origin = if from == "node" {
            Origin::Node
        } else {
            Origin::Network(None)
        };
        let protocol = if proto == ferry_lab::netns::Proto::Udp {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        // what the kernel tells a local UDP socket about a rejected datagram is not what it tells others
        let proto = if from == "node" {
            ferry_lab::netns::Proto::Tcp
        } else {
            proto
        };
        let protocol = if from == "node" { Protocol::Tcp } else { protocol };
        let packet = Packet {
            source,
            origin,
            destination: to,
            port,
            protocol,
        };
        let outcome = trace(plan, &packet);
        let local_destination = cluster::is_node_address(to);
        let mut probe = Probe::new(cluster::host_of(from), to, port, proto);
        probe.bind = cluster::is_remote_pod(from).then_some(source);
        probe.limit = match outcome.action {
            Action::Forward { .. } | Action::Reject => Some(Duration::from_secs(5)),
            Action::NotOurs if local_destination => Some(Duration::from_secs(5)),
            Action::Drop | Action::NotOurs => Some(SILENCE),
        };
        Ok(Question {
            probe,
            source,
            outcome,
            local_destination,
            may_go_astray: plan.node().binds_service_addresses,
        })
    }

    fn judge(&self, replies: &[Reply]) -> Result<()> {
        for reply in replies {
            let mut targets = self.outcome.targets.iter();
            let right = match (self.outcome.action, &reply.answer) {
                (Action::Forward { .. }, Answer::Timeout) => targets.any(|target| self.goes_astray(target)),
                (Action::Forward { .. }, Answer::Ok) => targets.any(|target| self.reached(target, reply)),
                (Action::Reject, Answer::Refused) | (Action::Drop, Answer::Timeout) => true,
                // nobody listens on the node's ports that are not node ports
                (Action::NotOurs, Answer::Refused) => self.local_destination,
                // the lab's switch swallows what it cannot deliver
                (Action::NotOurs, Answer::Timeout | Answer::Unreachable) => !self.local_destination,
                _ => false,
            };
            if !right {
                let Probe {
                    from,
                    to,
                    port,
                    proto,
                    ..
                } = &self.probe;
                bail!(
                    "{from:?} -> {to}:{port}/{proto}: the plan says {:#?}; the packet says {reply:?}",
                    self.outcome
                );
            }
        }
        Ok(())
    }

    /// An endpoint elsewhere that sees the client itself answers past the node, and the client does not know who is talking:
    /// pods of its node have this always, others in ipvs mode where a Local policy finds no endpoint here.
    fn goes_astray(&self, target: &Target) -> bool {
        let outside = ["client", "outsider"].contains(&self.probe.sender());
        let past_the_node = self.probe.sender() == "remote" || self.may_go_astray && outside;
        past_the_node && !target.masquerade && cluster::is_elsewhere(target.address.ip())
    }

    /// Did this endpoint answer, and did it see whom it should?
    fn reached(&self, target: &Target, reply: &Reply) -> bool {
        let seen = if target.masquerade {
            cluster::masqueraded_for(target.address.ip())
        } else {
            Some(self.source)
        };
        reply
            .seen
            .is_some_and(|(at, peer)| at == target.address && Some(peer) == seen)
    }
}
