//! The seventeen sets of a family: their names, types, and the comments that rules quote. All of it is kube-proxy's.

use ferry_host::ipset::Kind;
use ferry_model::Family;

/// A set, in the order in which sets are filled: what lets traffic through comes before what stops it, so that no
/// client is turned away while a service comes up. They are emptied in the opposite order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    LoopBack,
    ClusterIp,
    ExternalIpLocal,
    ExternalIp,
    LoadBalancerLocal,
    LoadBalancerSourceIp,
    LoadBalancerSourceCidr,
    LoadBalancerFw,
    LoadBalancer,
    NodePortLocalTcp,
    NodePortTcp,
    NodePortLocalUdp,
    NodePortUdp,
    NodePortLocalSctp,
    NodePortSctp,
    HealthCheckNodePort,
    IpvsIps,
}

impl Set {
    pub(super) const COUNT: usize = 17;

    pub(super) const ALL: [Set; Self::COUNT] = [
        Set::LoopBack,
        Set::ClusterIp,
        Set::ExternalIpLocal,
        Set::ExternalIp,
        Set::LoadBalancerLocal,
        Set::LoadBalancerSourceIp,
        Set::LoadBalancerSourceCidr,
        Set::LoadBalancerFw,
        Set::LoadBalancer,
        Set::NodePortLocalTcp,
        Set::NodePortTcp,
        Set::NodePortLocalUdp,
        Set::NodePortUdp,
        Set::NodePortLocalSctp,
        Set::NodePortSctp,
        Set::HealthCheckNodePort,
        Set::IpvsIps,
    ];

    /// The name in a family. IPv6 names carry a `6`, and two of them are cut to the 31 bytes that a name may have.
    pub(super) fn name(self, family: Family) -> &'static str {
        let (v4, v6) = self.names();
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Set::LoopBack => ("KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK"),
            Set::ClusterIp => ("KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"),
            Set::ExternalIp => ("KUBE-EXTERNAL-IP", "KUBE-6-EXTERNAL-IP"),
            Set::ExternalIpLocal => ("KUBE-EXTERNAL-IP-LOCAL", "KUBE-6-EXTERNAL-IP-LOCAL"),
            Set::LoadBalancer => ("KUBE-LOAD-BALANCER", "KUBE-6-LOAD-BALANCER"),
            Set::LoadBalancerFw => ("KUBE-LOAD-BALANCER-FW", "KUBE-6-LOAD-BALANCER-FW"),
            Set::LoadBalancerLocal => ("KUBE-LOAD-BALANCER-LOCAL", "KUBE-6-LOAD-BALANCER-LOCAL"),
            Set::LoadBalancerSourceIp => ("KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP"),
            Set::LoadBalancerSourceCidr => (
                "KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            ),
            Set::NodePortTcp => ("KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP"),
            Set::NodePortLocalTcp => ("KUBE-NODE-PORT-LOCAL-TCP", "KUBE-6-NODE-PORT-LOCAL-TCP"),
            Set::NodePortUdp => ("KUBE-NODE-PORT-UDP", "KUBE-6-NODE-PORT-UDP"),
            Set::NodePortLocalUdp => ("KUBE-NODE-PORT-LOCAL-UDP", "KUBE-6-NODE-PORT-LOCAL-UDP"),
            Set::NodePortSctp => ("KUBE-NODE-PORT-SCTP-HASH", "KUBE-6-NODE-PORT-SCTP-HASH"),
            Set::NodePortLocalSctp => (
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            ),
            Set::HealthCheckNodePort => ("KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT"),
            Set::IpvsIps => ("KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS"),
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Set::LoopBack | Set::LoadBalancerSourceIp => Kind::HashIpPortIp,
            Set::LoadBalancerSourceCidr => Kind::HashIpPortNet,
            Set::ClusterIp
            | Set::ExternalIp
            | Set::ExternalIpLocal
            | Set::LoadBalancer
            | Set::LoadBalancerFw
            | Set::LoadBalancerLocal
            | Set::NodePortSctp
            | Set::NodePortLocalSctp => Kind::HashIpPort,
            Set::NodePortTcp
            | Set::NodePortLocalTcp
            | Set::NodePortUdp
            | Set::NodePortLocalUdp
            | Set::HealthCheckNodePort => Kind::BitmapPort,
            Set::IpvsIps => Kind::HashIp,
        }
    }

    /// What rules that match the set say in their comments.
    pub(super) fn comment(self) -> &'static str {
        match self {
            Set::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            Set::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            Set::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            Set::ExternalIpLocal => "Kubernetes service external ip + port with externalTrafficPolicy=local",
            Set::LoadBalancer => "Kubernetes service lb portal",
            Set::LoadBalancerFw => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            Set::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            Set::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            Set::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            Set::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            Set::NodePortLocalTcp => "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            Set::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            Set::NodePortLocalUdp => "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            Set::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            Set::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            Set::HealthCheckNodePort => "Kubernetes health check node port",
            Set::IpvsIps => "Addresses on the ipvs interface",
        }
    }
}

/// One value for each set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PerSet<T>([T; Set::COUNT]);

impl<T> std::ops::Index<Set> for PerSet<T> {
    type Output = T;

    fn index(&self, set: Set) -> &T {
        &self.0[set as usize]
    }
}

impl<T> std::ops::IndexMut<Set> for PerSet<T> {
    fn index_mut(&mut self, set: Set) -> &mut T {
        &mut self.0[set as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_all_is_the_order_of_sets() {
        assert!(Set::ALL.is_sorted());
        for (place, set) in Set::ALL.into_iter().enumerate() {
            assert_eq!(set as usize, place);
        }
    }

    #[test]
    fn six_names_are_four_names_with_a_six_cut_to_what_the_kernel_takes() {
        for set in Set::ALL {
            let mut six = set.name(Family::V4).replacen("KUBE-", "KUBE-6-", 1);
            six.truncate(31);
            assert_eq!(set.name(Family::V6), six);
        }
    }
}
