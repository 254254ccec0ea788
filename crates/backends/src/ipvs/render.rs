//! A service of the plan -> its fragment of the ruleset. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_host::ipset::Entry;
use ferry_host::ipvs::{SCHED2, Service, Virtual};
use ferry_model::{Action, Family, Frontend, FrontendKind, PortPlan, Protocol, ServicePlan, TrafficPolicy};

use super::Options;
use super::ruleset::{Claim, Fragment, VirtualServer};
use super::sets::Set;

/// The part of the node that rendering depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) family: Family,
    /// Where node ports are answered.
    pub(super) node_ports: Vec<IpAddr>,
    /// Addresses that interfaces other than ours have: they need no binding.
    pub(super) elsewhere: BTreeSet<IpAddr>,
}

pub(super) fn service(plan: &ServicePlan, view: &View, options: &Options) -> Fragment {
    let mut fragment = Fragment::default();
    let mut any = false;
    for port in plan.ports(view.family) {
        any = true;
        let mut writer = PortWriter {
            fragment: &mut fragment,
            plan,
            port,
            view,
            options,
        };
        writer.loop_back();
        for frontend in &port.frontends {
            writer.frontend(frontend);
        }
    }
    if let Some(check) = plan.health_check.filter(|_| any) {
        fragment
            .entries
            .insert((Set::HealthCheckNodePort, Entry::Port(check.port)));
    }
    fragment
}

struct PortWriter<'a> {
    fragment: &'a mut Fragment,
    plan: &'a ServicePlan,
    port: &'a PortPlan,
    view: &'a View,
    options: &'a Options,
}

impl PortWriter<'_> {
    /// An endpoint that reaches itself through the service must see the node as the client. Every local endpoint counts,
    /// ready or not: connections outlive readiness.
    fn loop_back(&mut self) {
        let protocol = self.port.protocol().number();
        for endpoint in self.port.endpoints.iter().filter(|endpoint| endpoint.hairpins()) {
            let ip = endpoint.address().ip();
            let entry = Entry::IpPortIp(ip, protocol, endpoint.address().port(), ip);
            self.fragment.entries.insert((Set::LoopBack, entry));
        }
    }

    fn frontend(&mut self, frontend: &Frontend) {
        match (frontend.kind, frontend.key.address()) {
            (FrontendKind::ClusterIp, Some(ip)) => {
                self.entry(Set::ClusterIp, ip, frontend.key.port());
                self.serve(ip, frontend, Claim::Address);
                self.bind(ip);
            }
            (FrontendKind::ExternalIp, Some(ip)) => {
                let set = if self.is_local() {
                    Set::ExternalIpLocal
                } else {
                    Set::ExternalIp
                };
                self.entry(set, ip, frontend.key.port());
                self.serve_outside(ip, frontend);
            }
            (FrontendKind::LoadBalancerIp, Some(ip)) => self.load_balancer_ip(ip, frontend),
            (FrontendKind::NodePort, _) => self.node_port(frontend),
            // IPVS does not answer on loopback addresses.
            (FrontendKind::LocalhostNodePort, _) | (_, None) => {}
        }
    }

    fn load_balancer_ip(&mut self, ip: IpAddr, frontend: &Frontend) {
        let (protocol, port) = (self.port.protocol().number(), frontend.key.port());
        self.entry(Set::LoadBalancer, ip, port);
        if self.is_local() {
            self.entry(Set::LoadBalancerLocal, ip, port);
        }
        if let Some(allowed) = &frontend.allowed {
            self.entry(Set::LoadBalancerFw, ip, port);
            for range in &allowed.ranges {
                let entry = Entry::IpPortNet(ip, protocol, port, range.trunc());
                self.fragment.entries.insert((Set::LoadBalancerSourceCidr, entry));
            }
            // The node reaches the address with that same address as its source.
            if allowed.own_addresses.contains(&ip) {
                let entry = Entry::IpPortIp(ip, protocol, port, ip);
                self.fragment.entries.insert((Set::LoadBalancerSourceIp, entry));
            } else {
                self.fragment.closed_to_node.insert(self.at(ip, port));
            }
        }
        self.serve_outside(ip, frontend);
    }

    fn node_port(&mut self, frontend: &Frontend) {
        if self.view.node_ports.is_empty() {
            return;
        }
        let number = frontend.key.port();
        let (set, local_set) = match self.port.protocol() {
            Protocol::Tcp => (Set::NodePortTcp, Set::NodePortLocalTcp),
            Protocol::Udp => (Set::NodePortUdp, Set::NodePortLocalUdp),
            Protocol::Sctp => (Set::NodePortSctp, Set::NodePortLocalSctp),
        };
        for set in [set].into_iter().chain(self.is_local().then_some(local_set)) {
            match self.port.protocol() {
                Protocol::Tcp | Protocol::Udp => {
                    self.fragment.entries.insert((set, Entry::Port(number)));
                }
                Protocol::Sctp => {
                    for &ip in &self.view.node_ports {
                        self.entry(set, ip, number);
                    }
                }
            }
        }
        for &ip in &self.view.node_ports {
            self.serve(ip, frontend, Claim::NodePort);
        }
    }

    /// Which of two sets a frontend is in, endpoints or not: the one whose traffic keeps its source address.
    fn is_local(&self) -> bool {
        self.port.external_policy == TrafficPolicy::Local
    }

    fn at(&self, address: IpAddr, port: u16) -> Virtual {
        Virtual {
            address,
            port,
            protocol: self.port.protocol().number(),
        }
    }

    fn entry(&mut self, set: Set, ip: IpAddr, port: u16) {
        let entry = Entry::IpPort(ip, self.port.protocol().number(), port);
        self.fragment.entries.insert((set, entry));
    }

    fn bind(&mut self, ip: IpAddr) {
        self.fragment.addresses.insert(ip);
        self.fragment.entries.insert((Set::IpvsIps, Entry::Ip(ip)));
    }

    /// An address that others may have given to the node already.
    fn serve_outside(&mut self, ip: IpAddr, frontend: &Frontend) {
        self.serve(ip, frontend, Claim::Address);
        if !self.view.elsewhere.contains(&ip) {
            self.bind(ip);
        }
    }

    /// IPVS does not tell clients apart: all get what others get.
    fn serve(&mut self, ip: IpAddr, frontend: &Frontend, claim: Claim) {
        let servers = match frontend.actions.others {
            Action::Forward { scope, .. } => self.port.pool(scope).addresses().collect(),
            // IPVS refuses what it has no real server for.
            Action::Drop | Action::Reject | Action::NotOurs => BTreeSet::new(),
        };
        let at = self.at(ip, frontend.key.port());
        let scheduler = self
            .plan
            .options
            .scheduler
            .as_deref()
            .unwrap_or(&self.options.scheduler);
        let service = Service {
            at,
            scheduler: scheduler.to_owned(),
            flags: scheduler_flags(scheduler),
            persistence: self.port.affinity,
        };
        let server = VirtualServer {
            claim,
            port: self.port.name.clone(),
            service,
            servers,
            drain: self.drain(),
        };
        self.fragment.virtuals.insert(at, Arc::new(server));
    }

    /// SCTP moves on at once, as with kube-proxy, UDP as soon as answers on their way have had time to arrive, unless the
    /// service asks for something else.
    fn drain(&self) -> Duration {
        self.plan.options.drain.unwrap_or(match self.port.protocol() {
            Protocol::Tcp => self.options.drain,
            Protocol::Udp => ANSWERS,
            Protocol::Sctp => Duration::ZERO,
        })
    }
}

/// How long a UDP server that is no endpoint any more stays for the answers to what it was sent. The kernel translates an
/// answer only while it knows the server; what a client sends meanwhile over a flow that it has still goes there.
const ANSWERS: Duration = Duration::from_secs(1);

/// `mh` hashes the source port too, or all connections of a client would go to one endpoint.
pub(super) fn scheduler_flags(scheduler: &str) -> u32 {
    if scheduler == "mh" { SCHED2 } else { 0 }
}
