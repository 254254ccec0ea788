//! What a family has not brought into force yet.

use std::collections::BTreeSet;
use std::time::SystemTime;

use ferry_model::{
    Family, PortPlan, Protocol, Replaced, ServiceName, ServicePlan, StaleFlows, Update, stale_flows,
};

use super::conntrack::Gathering;

/// Trigger times beyond these are not worth their memory while syncs fail.
const MAX_TRIGGERS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) services: BTreeSet<ServiceName>,
    pub(super) node_changed: bool,
    /// When endpoints of which service changed in the cluster.
    pub(super) triggers: Vec<(ServiceName, SystemTime)>,
    pub(super) stale: Gathering,
    /// Endpoints of a UDP port changed, so flows were considered even if none can be stale.
    pub(super) udp_endpoints_changed: bool,
    /// The first and the last change, as they are remembered, that wait.
    pub(super) changes: Option<(u64, u64)>,
}

impl Pending {
    /// Notes an update; tells whether it gives this family something to do.
    pub(super) fn note(
        &mut self,
        family: Family,
        update: &Update,
        triggers: impl Iterator<Item = (ServiceName, SystemTime)>,
    ) -> bool {
        let mut concerned = update.node_changed;
        self.node_changed |= update.node_changed;
        for replaced in &update.replaced {
            if !differs(family, replaced) {
                continue;
            }
            concerned = true;
            self.stale.add(stale_of(family, replaced));
            self.udp_endpoints_changed |= udp_endpoints(family, replaced.old.as_deref())
                != udp_endpoints(family, replaced.new.as_deref());
            let service = replaced.new.as_ref().or(replaced.old.as_ref());
            self.services.extend(service.map(|service| service.name.clone()));
        }
        let room = MAX_TRIGGERS.saturating_sub(self.triggers.len());
        self.triggers.extend(triggers.take(room));
        concerned
    }
}

/// Whether a service's new plan means something else than the old one in this family.
fn differs(family: Family, replaced: &Replaced) -> bool {
    let (old, new) = (replaced.old.as_deref(), replaced.new.as_deref());
    let (Some(old), Some(new)) = (old, new) else {
        let one = old.or(new);
        return one.is_some_and(|service| service.ports(family).next().is_some());
    };
    let check = |service: &ServicePlan| {
        service
            .health_check
            .map(|check| (check.port, *check.local_endpoints.get(family)))
    };
    !old.ports(family).eq(new.ports(family)) || old.options != new.options || check(old) != check(new)
}

fn udp_endpoints(family: Family, service: Option<&ServicePlan>) -> Vec<&PortPlan> {
    let ports = service.into_iter().flat_map(|service| service.ports(family));
    ports
        .filter(|port| port.protocol() == Protocol::Udp && !port.endpoints.is_empty())
        .collect()
}

fn stale_of(family: Family, replaced: &Replaced) -> Vec<StaleFlows> {
    let mut stale = stale_flows(replaced.old.as_deref(), replaced.new.as_deref());
    stale.retain(|flows| flows.frontend.family() == family);
    stale
}
