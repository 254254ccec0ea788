//! The packet table: the built program in the lab's network, in ipvs mode for the first time, and in the other modes of the
//! kernel once more, because this is another kernel.

use ferry_lab::oracle;
use ferry_netns::{Mode, live, recorded};

use crate::cases::Room;

type Live = (&'static str, fn(Mode) -> anyhow::Result<()>);

const LIVE: &[Live] = &[
    ("no_endpoint_one_endpoint", live::no_endpoint_one_endpoint),
    ("restart", live::restart),
    ("scaling", live::scaling),
    ("flush", live::flush),
    ("affinity", live::affinity),
];

pub(crate) fn room() -> Room {
    let scenarios = oracle::scenarios().unwrap();
    let mut cases: Vec<(String, Box<dyn Fn() + Send + Sync>)> = Vec::new();
    for (mode, like) in [
        (Mode::Ipvs, oracle::Mode::Ipvs),
        (Mode::Nftables, oracle::Mode::Nftables),
        (Mode::Iptables, oracle::Mode::Iptables),
    ] {
        for scenario in scenarios.iter().filter(|scenario| scenario.runs_in(like)) {
            let name = scenario.name.clone();
            let case = move || recorded::run(mode, &name).unwrap();
            cases.push((
                format!("packets::{}::{}", mode.as_str(), scenario.name),
                Box::new(case),
            ));
        }
    }
    for (name, case) in LIVE {
        let case = move || case(Mode::Ipvs).unwrap();
        cases.push((format!("packets::ipvs::{name}"), Box::new(case)));
    }
    Room { cases, at_a_time: 4 }
}
