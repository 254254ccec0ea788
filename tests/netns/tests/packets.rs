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
        live { affinity flush no_endpoint_one_endpoint restart scaling }
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
        live { affinity flush no_endpoint_one_endpoint restart scaling }
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
        live { affinity flush handover no_endpoint_one_endpoint scaling }
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
