//! Real servers that get no new connections any more, until their last one ends or their time is up.
//!
//! The kernel remembers such a server by its weight of zero, so nothing is lost when the process ends: the next one
//! finds the server, sees that no endpoint stands behind it, and goes on draining, with a new deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_host::ipvs::{Change, ServerState, Virtual};

/// How often connections are counted while something drains.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Drain {
    servers: BTreeMap<(Virtual, SocketAddr), Ending>,
    next_look: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    deadline: Instant,
    /// As counted last.
    connections: u32,
}

impl Drain {
    /// Starts draining; a server that drains already keeps its deadline.
    pub(super) fn begin(&mut self, from: Virtual, server: SocketAddr, now: Instant, drain: Duration) {
        self.next_look.get_or_insert(now + POLL_INTERVAL);
        let ending = Ending {
            deadline: now + drain,
            connections: 0,
        };
        self.servers.entry((from, server)).or_insert(ending);
    }

    /// The server is wanted again.
    pub(super) fn forget(&mut self, from: Virtual, server: SocketAddr) {
        self.servers.remove(&(from, server));
    }

    /// The virtual server is gone, and all its connections with it.
    pub(super) fn forget_virtual(&mut self, from: Virtual) {
        self.servers.retain(|(at, _), _| *at != from);
    }

    /// What drains at a virtual server.
    pub(super) fn servers_of(&self, from: Virtual) -> impl Iterator<Item = SocketAddr> {
        self.servers
            .keys()
            .filter(move |(at, _)| *at == from)
            .map(|(_, server)| *server)
    }

    /// The virtual servers to look at now: all where something drains, when it is time.
    pub(super) fn due(&mut self, now: Instant) -> BTreeSet<Virtual> {
        if self.next_due(now) != Some(Duration::ZERO) {
            return BTreeSet::new();
        }
        self.next_look = Some(now + POLL_INTERVAL);
        self.servers.keys().map(|(at, _)| *at).collect()
    }

    /// What to do at a virtual server, now that its real servers were counted.
    pub(super) fn step(&mut self, from: Virtual, states: &[ServerState], now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        let draining: Vec<SocketAddr> = self.servers_of(from).collect();
        for server in draining {
            let state = states.iter().find(|state| state.server.at == server);
            let ended = match (state, self.servers.get_mut(&(from, server))) {
                (Some(state), Some(ending)) => {
                    ending.connections = state.active + state.inactive;
                    state.is_idle() || ending.deadline <= now
                }
                _ => true,
            };
            if ended {
                self.servers.remove(&(from, server));
                if state.is_some() {
                    changes.push(Change::RemoveServer(from, server));
                }
            }
        }
        changes
    }

    /// When something has to be looked at again.
    pub(super) fn next_due(&self, now: Instant) -> Option<Duration> {
        let first = self.servers.values().map(|ending| ending.deadline).min()?;
        let next = self.next_look.map_or(first, |look| look.min(first));
        Some(next.saturating_duration_since(now))
    }

    /// Lines for people.
    pub(super) fn notes(&self, now: Instant) -> Vec<String> {
        let line = |((at, server), ending): (&(Virtual, SocketAddr), &Ending)| {
            let left = ending.deadline.saturating_duration_since(now).as_secs();
            format!(
                "{server} of {at} drains: {} connections, {left} s left",
                ending.connections
            )
        };
        self.servers.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_host::ipvs::{Server, Stats};

    const AT: Virtual = Virtual {
        address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 1)),
        port: 80,
        protocol: 6,
    };

    fn state(at: &str, active: u32, inactive: u32) -> ServerState {
        let server = Server {
            at: at.parse().unwrap(),
            weight: 0,
        };
        ServerState {
            server,
            active,
            inactive,
            persistent: 0,
            stats: Stats::default(),
        }
    }

    #[test]
    fn a_server_goes_when_it_is_idle_or_its_time_is_up() {
        let (now, mut drain) = (Instant::now(), Drain::default());
        let servers: Vec<SocketAddr> = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"]
            .map(|at| at.parse().unwrap())
            .into();
        for server in &servers {
            drain.begin(AT, *server, now, Duration::from_secs(60));
        }
        let states = [
            state("10.0.0.1:80", 1, 0),
            state("10.0.0.2:80", 0, 1),
            state("10.0.0.3:80", 0, 0),
        ];
        assert_eq!(
            drain.step(AT, &states, now),
            [Change::RemoveServer(AT, servers[2])]
        );
        assert_eq!(
            drain.servers_of(AT).collect::<Vec<_>>(),
            servers[..2],
            "one idle, one already gone"
        );
        let later = now + Duration::from_secs(60);
        let gone = drain.step(AT, &states, later);
        assert_eq!(
            gone,
            [
                Change::RemoveServer(AT, servers[0]),
                Change::RemoveServer(AT, servers[1])
            ]
        );
        assert_eq!(drain.next_due(later), None);
    }

    #[test]
    fn beginning_again_does_not_move_the_deadline() {
        let (now, mut drain) = (Instant::now(), Drain::default());
        let server: SocketAddr = "10.0.0.1:80".parse().unwrap();
        drain.begin(AT, server, now, Duration::from_secs(1));
        drain.begin(AT, server, now, Duration::from_secs(100));
        let gone = drain.step(AT, &[state("10.0.0.1:80", 5, 5)], now + Duration::from_secs(2));
        assert_eq!(gone, [Change::RemoveServer(AT, server)]);
    }

    #[test]
    fn looks_are_spaced_and_never_later_than_a_deadline() {
        let (now, mut drain) = (Instant::now(), Drain::default());
        assert_eq!(drain.next_due(now), None);
        drain.begin(AT, "10.0.0.1:80".parse().unwrap(), now, Duration::from_secs(60));
        assert_eq!(drain.next_due(now), Some(POLL_INTERVAL));
        assert!(drain.due(now + Duration::from_secs(1)).is_empty());
        assert_eq!(drain.due(now + POLL_INTERVAL), BTreeSet::from([AT]));
        let looked = now + POLL_INTERVAL;
        drain.begin(AT, "10.0.0.2:80".parse().unwrap(), looked, Duration::from_secs(1));
        assert_eq!(drain.next_due(looked), Some(Duration::from_secs(1)));
    }
}
