//! Random changes of a small cluster: few services, so that they often meet in addresses, pods and pool sizes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_model::*;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::world::{self, ips, nets};

const SERVICES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Events from a seed.
pub(crate) struct Changes(StdRng);

impl Changes {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// One to three changed objects.
    pub(crate) fn step(&mut self) -> Vec<Event> {
        let count = self.0.random_range(1..=3);
        (0..count).map(|_| self.event()).collect()
    }

    fn event(&mut self) -> Event {
        match self.0.random_range(0..20) {
            0..=6 => world::set(self.service()),
            7..=8 => world::remove(self.name()),
            9..=17 => self.endpoints(),
            18 => Event::ServiceCidr(
                "extra".into(),
                self.0
                    .random_bool(0.5)
                    .then(|| nets(&["10.97.0.0/24", "fd00:97::/108"])),
            ),
            _ => {
                let addresses = ["192.0.2.10", "192.0.2.11", "2001:db8::10"];
                let count = self.0.random_range(1..=addresses.len());
                Event::Host(Arc::new(Host {
                    addresses: ips(&addresses[..count]).into_iter().collect(),
                }))
            }
        }
    }

    fn name(&mut self) -> &'static str {
        SERVICES.choose(&mut self.0).copied().unwrap_or("a")
    }

    fn policy(&mut self) -> TrafficPolicy {
        if self.0.random_bool(0.4) {
            TrafficPolicy::Local
        } else {
            TrafficPolicy::Cluster
        }
    }

    fn some(&mut self, chance: f64, addresses: &[&str]) -> Vec<IpAddr> {
        let all = ips(addresses);
        all.into_iter().filter(|_| self.0.random_bool(chance)).collect()
    }

    fn service(&mut self) -> Service {
        let name = self.name();
        let number = 1 + SERVICES.iter().position(|other| *other == name).unwrap_or(0);
        let v4 = format!("10.96.0.{number}");
        let mut service = world::service(name, &v4);
        if self.0.random_bool(0.4) {
            service
                .cluster_ips
                .push(format!("fd00:96::{number}").parse().unwrap());
        }
        if self.0.random_bool(0.3) {
            let dns = ServicePort {
                name: "dns".into(),
                protocol: Protocol::Udp,
                port: 53,
                node_port: None,
            };
            service.ports.push(dns);
        }
        if self.0.random_bool(0.4) {
            // Sometimes two services want the same one.
            service.kind = ServiceType::NodePort;
            let base = 30000 + self.0.random_range(0..3u16) * 10;
            for (index, port) in service.ports.iter_mut().enumerate() {
                port.node_port = Some(base + index as u16);
            }
        }
        service.external_ips = self.some(0.15, &["203.0.113.1", "203.0.113.2", "2001:db8:1::1"]);
        service.load_balancer_ips = self.some(0.2, &["203.0.113.2", "203.0.113.3", "2001:db8:1::2"]);
        if self.0.random_bool(0.5) {
            let ranges = [
                "192.0.2.0/24",
                "192.0.2.0/25",
                "10.0.0.0/8",
                "240.0.0.0/4",
                "2001:db8::/32",
            ];
            let chosen: Vec<&str> = ranges.into_iter().filter(|_| self.0.random_bool(0.4)).collect();
            service.source_ranges = nets(&chosen);
        }
        service.internal_policy = self.policy();
        service.external_policy = self.policy();
        service.affinity = self
            .0
            .random_bool(0.25)
            .then(|| Duration::from_secs(60 * u64::from(self.0.random_range(1..4u8))));
        service
    }

    fn endpoints(&mut self) -> Event {
        let pods = if self.0.random_bool(0.7) {
            [
                "10.244.1.1",
                "10.244.1.2",
                "10.244.1.3",
                "10.244.2.1",
                "10.244.2.2",
                "10.244.2.3",
            ]
        } else {
            [
                "fd00:244:0:1::1",
                "fd00:244:0:1::2",
                "fd00:244:0:1::3",
                "fd00:244:0:2::1",
                "fd00:244:0:2::2",
                "fd00:244:0:2::3",
            ]
        };
        let addresses = self.some(0.4, &pods);
        let name = self.name();
        world::endpoints_of(
            name,
            &[("http", Protocol::Tcp), ("dns", Protocol::Udp)],
            &addresses,
        )
    }
}
