//! The packet table for every mode that this kernel has; ipvs has its turn in the virtual machine.

#![allow(clippy::panic)]

macro_rules! cases {
    ($mode:ident: recorded { $($recorded:ident)* } live { $($live:ident)* }) => {
        $(
            #[test]
            fn $recorded() {
                let name = stringify!($recorded).replace('_', "-");
                super::holds(ferry_netns::recorded::run(ferry_netns::Mode::$mode, &name));
            }
        )*
        $(
            #[test]
            fn $live() {
                super::holds(ferry_netns::live::$live(ferry_netns::Mode::$mode));
            }
        )*
    };
}

fn holds(outcome: anyhow::Result<()>) {
    if let Err(e) = outcome {
        panic!("{e:#}");
    }
}

fn sequences(mode: ferry_netns::Mode) {
    holds(ferry_netns::random::sequences(mode, 200));
}

mod nftables {
    #[test]
    fn random_sequences() {
        super::sequences(ferry_netns::Mode::Nftables);
    }

    cases! { Nftables:
        recorded {
            clusterip clusterip_udp dual_stack external_ip hairpin health ignored_services interface_prefix
            internal_local loadbalancer loadbalancer_local loadbalancer_source_ranges many_changes masquerade_all
            no_cluster_cidr no_endpoints nodeport nodeport_addresses_all nodeport_addresses_one nodeport_local
            nodeport_udp session_affinity terminating topology_zones udp_before_endpoints udp_stale_endpoint
            watch_interrupted
        }
        live { affinity fast_path flush held_ports no_endpoint_one_endpoint refused_at_once restart scaling short_connections }
    }
}

mod iptables {
    #[test]
    fn random_sequences() {
        super::sequences(ferry_netns::Mode::Iptables);
    }

    cases! { Iptables:
        recorded {
            clusterip clusterip_udp dual_stack external_ip hairpin health ignored_services interface_prefix
            internal_local loadbalancer loadbalancer_local loadbalancer_source_ranges many_changes masquerade_all
            no_cluster_cidr no_endpoints nodeport nodeport_addresses_all nodeport_addresses_one nodeport_local
            nodeport_localhost nodeport_udp session_affinity terminating topology_zones udp_before_endpoints
            udp_stale_endpoint watch_interrupted
        }
        live { affinity flush held_ports no_endpoint_one_endpoint refused_at_once restart scaling short_connections }
    }
}

mod userspace {
    cases! { Userspace:
        recorded {
            clusterip clusterip_udp dual_stack external_ip hairpin health ignored_services interface_prefix
            internal_local loadbalancer loadbalancer_local loadbalancer_source_ranges many_changes masquerade_all
            no_cluster_cidr no_endpoints nodeport nodeport_addresses_all nodeport_addresses_one nodeport_local
            nodeport_localhost nodeport_udp session_affinity terminating topology_zones udp_before_endpoints
            udp_stale_endpoint watch_interrupted
        }
        live { affinity flush handover no_endpoint_one_endpoint refused_at_once scaling }
    }
}

mod switch {
    use ferry_netns::Mode::{Iptables, Nftables, Userspace};
    use ferry_netns::switch;

    #[test]
    fn between_modes() {
        super::holds(switch::modes(&[
            Iptables, Nftables, Iptables, Nftables, Userspace,
        ]));
    }

    #[test]
    fn from_kube_proxy_to_iptables() {
        super::holds(switch::from_kube_proxy(Iptables));
    }

    #[test]
    fn from_kube_proxy_to_nftables() {
        super::holds(switch::from_kube_proxy(Nftables));
    }
}

mod sig_network {
    use ferry_netns::{Mode, sig_network};

    #[test]
    fn nftables() {
        super::holds(sig_network::cases(Mode::Nftables));
    }

    #[test]
    fn iptables() {
        super::holds(sig_network::cases(Mode::Iptables));
    }

    #[test]
    fn userspace() {
        super::holds(sig_network::cases(Mode::Userspace));
    }
}

/// A scenario that nobody runs proves nothing.
#[test]
fn every_scenario_is_in_the_table() {
    let table = include_str!("packets.rs");
    for scenario in ferry_lab::oracle::scenarios().unwrap() {
        let name = scenario.name.replace('-', "_");
        let times = table.split_whitespace().filter(|word| *word == name).count();
        let recorded = [
            ferry_lab::oracle::Mode::Nftables,
            ferry_lab::oracle::Mode::Iptables,
        ];
        // userspace has what iptables has
        let modes = recorded.iter().filter(|mode| scenario.runs_in(**mode)).count() + 1;
        assert_eq!(times, modes, "{name}");
    }
}

/// Every test that docs/conformance.md names is there, and every case is named.
#[test]
fn the_conformance_table_names_tests_that_exist() {
    let page = include_str!("../../../docs/conformance.md");
    let scenarios: Vec<String> = ferry_lab::oracle::scenarios()
        .unwrap()
        .into_iter()
        .map(|scenario| scenario.name)
        .collect();
    let live = include_str!("../src/live.rs");
    let mut cases: Vec<&str> = ferry_netns::sig_network::names().collect();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let place = row
            .trim_end_matches(" |")
            .rsplit_once(" | ")
            .map_or("", |(_, place)| place);
        for part in place.split("; ") {
            let Some((kind, names)) = part.split_once(' ') else {
                continue;
            };
            let names = names.split(" (").next().unwrap_or_default();
            for name in names.split(", ") {
                let known = match kind {
                    "recorded" => scenarios.iter().any(|scenario| scenario == name),
                    "live" => live.contains(&format!("pub fn {name}(")),
                    "case" => ferry_netns::sig_network::names().any(|case| case == name),
                    _ => continue,
                };
                assert!(known, "{kind} {name} does not exist: {row}");
                cases.retain(|case| *case != name);
            }
        }
    }
    assert!(cases.is_empty(), "not in docs/conformance.md: {cases:?}");
}
