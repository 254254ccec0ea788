//! The packet table: the built program in the lab's network, in ipvs mode for the first time, and in the other modes of the
//! kernel once more, because this is another kernel.

use ferry_lab::oracle;
use ferry_netns::{Mode, live, recorded};

use crate::cases::{Room, RoomCase};

type Live = (&'static str, fn(Mode) -> anyhow::Result<()>);

const LIVE: &[Live] = &[
    ("no_endpoint_one_endpoint", live::no_endpoint_one_endpoint),
    ("restart", live::restart),
    ("scaling", live::scaling),
    ("flush", live::flush),
    ("affinity", live::affinity),
];

/// What runs in the modes that have had the whole table on the machine's own kernel: something of every kind of rule. All of
/// it runs when it is asked for by name (`packets::`).
const ELSEWHERE_TOO: &[&str] = &[
    "clusterip",
    "dual-stack",
    "external-ip",
    "hairpin",
    "loadbalancer-source-ranges",
    "no-endpoints",
    "nodeport-local",
    "session-affinity",
    "udp-stale-endpoint",
];

pub(crate) fn room() -> Room {
    let scenarios = oracle::scenarios().unwrap();
    let mut cases = Vec::new();
    for (mode, like) in [
        (Mode::Ipvs, oracle::Mode::Ipvs),
        (Mode::Nftables, oracle::Mode::Nftables),
        (Mode::Iptables, oracle::Mode::Iptables),
    ] {
        for scenario in scenarios.iter().filter(|scenario| scenario.runs_in(like)) {
            let name = scenario.name.clone();
            cases.push(RoomCase {
                name: format!("packets::{}::{name}", mode.as_str()),
                always: mode == Mode::Ipvs || ELSEWHERE_TOO.contains(&&*name),
                run: Box::new(move || recorded::run(mode, &name).unwrap()),
            });
        }
    }
    Room { cases, at_a_time: 4 }
}

/// Cases that watch the clock run by themselves: in company an emulated machine is too slow for any promise.
pub(crate) fn live_room() -> Room {
    let cases = LIVE.iter().map(|(name, case)| RoomCase {
        name: format!("packets::ipvs::{name}"),
        always: true,
        run: Box::new(move || case(Mode::Ipvs).unwrap()),
    });
    Room {
        cases: cases.collect(),
        at_a_time: 1,
    }
}
