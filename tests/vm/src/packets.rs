//! The packet table: the built program in the lab's network, in ipvs mode for the first time, and in the other modes of the
//! kernel once more, because this is another kernel.

use ferry_lab::oracle;
use ferry_netns::{self as table, Mode, random};

use crate::cases::{RoomCase, Share};

type Live = (&'static str, fn(Mode) -> anyhow::Result<()>);

const LIVE: &[Live] = &[
    ("no_endpoint_one_endpoint", table::live::no_endpoint_one_endpoint),
    ("refused_at_once", table::live::refused_at_once),
    ("restart", table::live::restart),
    ("scaling", table::live::scaling),
    ("short_connections", table::live::short_connections),
    ("flush", table::live::flush),
    ("affinity", table::live::affinity),
    ("random_sequences", |mode| random::sequences(mode, SEQUENCES)),
];

/// The host's own kernel has 200 of them.
const SEQUENCES: u64 = 8;

const MODES: [(Mode, oracle::Mode); 3] = [
    (Mode::Ipvs, oracle::Mode::Ipvs),
    (Mode::Nftables, oracle::Mode::Nftables),
    (Mode::Iptables, oracle::Mode::Iptables),
];

/// Something of every kind of rule: what modes that have their whole table with the older kind of iptables show with the
/// newer kind too.
const EVERY_KIND: &[&str] = &[
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

/// The shares that a case belongs to.
fn shares(mode: Mode, scenario: &str) -> &'static [Share] {
    match mode {
        Mode::Nftables => &[Share::NfTables],
        _ if EVERY_KIND.contains(&scenario) => Share::BOTH,
        _ => &[Share::Legacy],
    }
}

pub(crate) fn recorded() -> Vec<RoomCase> {
    let scenarios = oracle::scenarios().unwrap();
    let mut cases = Vec::new();
    for (mode, like) in MODES {
        for scenario in scenarios.iter().filter(|scenario| scenario.runs_in(like)) {
            let name = scenario.name.clone();
            cases.push(RoomCase {
                name: format!("packets::{}::{name}", mode.as_str()),
                shares: shares(mode, &name),
                run: Box::new(move || table::recorded::run(mode, &name).unwrap()),
            });
        }
    }
    cases
}

/// Into ipvs mode and out of it, under traffic. The host's own kernel has the other modes' turn.
pub(crate) fn switch() -> RoomCase {
    RoomCase {
        name: "packets::ipvs::switch".to_owned(),
        shares: &[Share::Legacy],
        run: Box::new(|| {
            table::switch::modes(&[Mode::Iptables, Mode::Ipvs, Mode::Iptables, Mode::Ipvs]).unwrap()
        }),
    }
}

/// What `ferry explain` says and Kubernetes' own cases in the mode that the host's kernel lacks, and those of a protocol that it lacks.
pub(crate) fn sig_network() -> Vec<RoomCase> {
    let case = |name: &str, share, mode: Mode, run: fn(Mode) -> anyhow::Result<()>| RoomCase {
        name: format!("packets::{}::{name}", mode.as_str()),
        shares: share,
        run: Box::new(move || run(mode).unwrap()),
    };
    vec![
        case(
            "sig_network",
            &[Share::Legacy],
            Mode::Ipvs,
            table::sig_network::cases,
        ),
        case(
            "explained",
            &[Share::Legacy],
            Mode::Ipvs,
            table::explain::wrong_objects,
        ),
        case("sctp", &[Share::NfTables], Mode::Ipvs, table::sig_network::sctp),
        case(
            "sctp",
            &[Share::NfTables],
            Mode::Nftables,
            table::sig_network::sctp,
        ),
        case(
            "sctp",
            &[Share::NfTables],
            Mode::Iptables,
            table::sig_network::sctp,
        ),
    ]
}

/// Flowtables, which not every kernel has.
pub(crate) fn fast_path() -> RoomCase {
    RoomCase {
        name: "packets::nftables::fast_path".to_owned(),
        shares: &[Share::NfTables],
        run: Box::new(|| table::live::fast_path_carries(Mode::Nftables).unwrap()),
    }
}

pub(crate) fn live() -> Vec<RoomCase> {
    let case = |mode: Mode, (name, case): Live| RoomCase {
        name: format!("packets::{}::{name}", mode.as_str()),
        shares: shares(mode, name),
        run: Box::new(move || case(mode).unwrap()),
    };
    MODES
        .iter()
        .flat_map(|(mode, _)| LIVE.iter().map(move |live| case(*mode, *live)))
        .collect()
}
