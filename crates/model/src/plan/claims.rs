//! Who answers where: each address and port belongs to one service. Where several ask for it, the kind of claim
//! decides, then age, then name; who loses goes without that frontend, and keeps all others.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::{Frontend, FrontendKey, FrontendKind, PortPlan, ServicePlan};
use crate::facts::{ObjectRef, Skipped};
use crate::names::{PortName, ServiceName};

/// A frontend that a service port asks for and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) key: FrontendKey,
    kind: FrontendKind,
    port: PortName,
}

impl Lost {
    pub(super) fn to(&self, winner: &PortName) -> Contest {
        Contest {
            key: self.key,
            kind: self.kind,
            loser: self.port.clone(),
            winner: winner.clone(),
        }
    }
}

/// A frontend that two service ports ask for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contest {
    pub key: FrontendKey,
    /// What it would be to the loser.
    pub kind: FrontendKind,
    pub loser: PortName,
    pub winner: PortName,
}

impl Contest {
    /// So many are told of each service.
    pub(super) const TOLD: usize = 16;

    pub fn skipped(&self) -> Skipped {
        let place = match self.key {
            FrontendKey::Address(address, port, protocol) => format!("{address} port {port}/{protocol}"),
            FrontendKey::NodePort(family, port, protocol) => format!("{family} node port {port}/{protocol}"),
        };
        Skipped {
            object: ObjectRef::Service(self.loser.service.clone()),
            part: Some(place),
            reason: format!("{} has it already", self.winner),
        }
    }
}

/// A service that asks for a frontend. The least one gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    kind: FrontendKind,
    /// Who does not say how old it is, is young.
    created: i64,
    service: ServiceName,
}

impl Claim {
    fn of(plan: &ServicePlan, kind: FrontendKind) -> Self {
        Claim {
            kind,
            created: plan.created.unwrap_or(i64::MAX),
            service: plan.name.clone(),
        }
    }
}

/// Nearly always one service asks for a frontend; a list for each would be most of the plan's memory.
#[derive(Clone, Debug)]
enum Claimants {
    One(Claim),
    /// In the order of their rank.
    Several(Vec<Claim>),
}

impl Claimants {
    fn owner(&self) -> Option<&Claim> {
        match self {
            Claimants::One(claim) => Some(claim),
            Claimants::Several(claims) => claims.first(),
        }
    }
}

/// At how many frontends services ask for an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses {
    as_cluster_ip: u32,
    otherwise: u32,
}

impl Uses {
    fn of(&mut self, kind: FrontendKind) -> &mut u32 {
        if kind == FrontendKind::ClusterIp {
            &mut self.as_cluster_ip
        } else {
            &mut self.otherwise
        }
    }
}

/// Every frontend that is asked for, and by whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    by_key: HashMap<FrontendKey, Claimants>,
    /// How many of them have several claimants.
    contested: usize,
    addresses: HashMap<IpAddr, Uses>,
    losers: BTreeSet<ServiceName>,
}

impl Claims {
    pub(super) fn owner(&self, key: &FrontendKey) -> Option<&ServiceName> {
        let owner = self.by_key.get(key)?.owner()?;
        Some(&owner.service)
    }

    pub(super) fn is_cluster_ip(&self, address: IpAddr) -> bool {
        let uses = self.addresses.get(&address);
        uses.is_some_and(|uses| uses.as_cluster_ip > 0)
    }

    pub(super) fn is_service_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// The services that do not have all that they ask for.
    pub(super) fn losers(&self) -> impl Iterator<Item = &ServiceName> {
        self.losers.iter()
    }

    /// Puts the claims of a service's new plan in place of those of its old one, and takes from the new plan what
    /// others hold. The services whose frontends are won or lost by that are added to `disturbed`.
    pub(super) fn settle(
        &mut self,
        old: Option<&ServicePlan>,
        new: Option<&mut ServicePlan>,
        disturbed: &mut BTreeSet<ServiceName>,
    ) {
        let new_ref = new.as_deref();
        if !ask_the_same(old, new_ref) {
            self.exchange(old, new_ref, disturbed);
        }
        match new {
            Some(new) => {
                if self.contested > 0 {
                    self.strip(new);
                }
                new.ports.retain(|port| !port.frontends.is_empty());
                if new.lost.is_empty() && new.excess == 0 {
                    self.losers.remove(&new.name);
                } else {
                    self.losers.insert(new.name.clone());
                }
            }
            None => {
                if let Some(old) = old {
                    self.losers.remove(&old.name);
                }
            }
        }
    }

    /// Walks both lists, which are sorted, side by side.
    fn exchange(
        &mut self,
        old: Option<&ServicePlan>,
        new: Option<&ServicePlan>,
        disturbed: &mut BTreeSet<ServiceName>,
    ) {
        let (before, after) = (asked(old), asked(new));
        let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
        let same_age = old.map(|old| old.created) == new.map(|new| new.created);
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((before, _)), Some((after, _))) => before.cmp(after),
            };
            if order == Ordering::Equal && same_age && before.peek() == after.peek() {
                before.next();
                after.next();
                continue;
            }
            if order != Ordering::Greater
                && let (Some((key, kind)), Some(old)) = (before.next(), old)
            {
                self.release(*key, *kind, &old.name, disturbed);
            }
            if order != Ordering::Less
                && let (Some((key, kind)), Some(new)) = (after.next(), new)
            {
                self.claim(*key, Claim::of(new, *kind), disturbed);
            }
        }
    }

    fn claim(&mut self, key: FrontendKey, claim: Claim, disturbed: &mut BTreeSet<ServiceName>) {
        if let Some(address) = key.address() {
            *self.addresses.entry(address).or_default().of(claim.kind) += 1;
        }
        let mut entry = match self.by_key.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Claimants::One(claim));
                return;
            }
            Entry::Occupied(entry) => entry,
        };
        if let Claimants::One(other) = entry.get() {
            let several = Claimants::Several(vec![other.clone()]);
            entry.insert(several);
            self.contested += 1;
        }
        if let Claimants::Several(claims) = entry.get_mut() {
            let place = claims.partition_point(|other| *other < claim);
            if let (0, Some(loser)) = (place, claims.first()) {
                disturbed.insert(loser.service.clone());
            }
            claims.insert(place, claim);
        }
    }

    fn release(
        &mut self,
        key: FrontendKey,
        kind: FrontendKind,
        service: &ServiceName,
        disturbed: &mut BTreeSet<ServiceName>,
    ) {
        if let Some(address) = key.address()
            && let Entry::Occupied(mut entry) = self.addresses.entry(address)
        {
            *entry.get_mut().of(kind) -= 1;
            if *entry.get() == Uses::default() {
                entry.remove();
            }
        }
        let Entry::Occupied(mut entry) = self.by_key.entry(key) else {
            return;
        };
        let Claimants::Several(claims) = entry.get_mut() else {
            entry.remove();
            return;
        };
        let was_owner = claims.first().is_some_and(|owner| owner.service == *service);
        claims.retain(|claim| claim.service != *service);
        if let (true, Some(heir)) = (was_owner, claims.first()) {
            disturbed.insert(heir.service.clone());
        }
        if let [last] = &mut claims[..] {
            let last = last.clone();
            entry.insert(Claimants::One(last));
            self.contested -= 1;
        }
    }

    /// Takes from a plan the frontends that others hold.
    fn strip(&self, plan: &mut ServicePlan) {
        let name = &plan.name;
        let is_lost = |frontend: &Frontend| self.owner(&frontend.key).is_some_and(|owner| owner != name);
        for port in &mut plan.ports {
            if port.frontends.iter().any(is_lost) {
                port.give_up(is_lost, &mut plan.lost);
            }
        }
    }
}

impl PortPlan {
    /// Goes without some of its frontends.
    pub(super) fn give_up(&mut self, gone: impl Fn(&Frontend) -> bool, lost: &mut Vec<Lost>) {
        let all = self.frontends.iter().cloned();
        let (gone, kept): (Vec<Frontend>, Vec<Frontend>) = all.partition(gone);
        self.frontends = kept.into();
        lost.extend(places(&gone).into_iter().map(|(key, kind)| Lost {
            key,
            kind,
            port: self.name.clone(),
        }));
    }
}

/// The short way to tell that nothing changes about claims, as is so when endpoints come and go.
fn ask_the_same(old: Option<&ServicePlan>, new: Option<&ServicePlan>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return false;
    };
    old.created == new.created
        && old.lost.is_empty()
        && new.lost.is_empty()
        && old.ports.len() == new.ports.len()
        && std::iter::zip(&old.ports, &new.ports).all(|(old, new)| {
            old.frontends.len() == new.frontends.len()
                && std::iter::zip(&old.frontends, &new.frontends)
                    .all(|(old, new)| (old.key, old.kind) == (new.key, new.kind))
        })
}

/// What a service asks for, whether it got it or not.
fn asked(plan: Option<&ServicePlan>) -> Vec<(FrontendKey, FrontendKind)> {
    let Some(plan) = plan else { return Vec::new() };
    let frontends = plan.ports.iter().flat_map(|port| &port.frontends);
    let mut asked = places(frontends);
    if !plan.lost.is_empty() {
        asked.extend(plan.lost.iter().map(|lost| (lost.key, lost.kind)));
        sort(&mut asked);
    }
    asked
}

/// The places of frontends: sorted, each once, by the best of its claims.
fn places<'a>(frontends: impl IntoIterator<Item = &'a Frontend>) -> Vec<(FrontendKey, FrontendKind)> {
    let frontends = frontends.into_iter();
    let mut places = frontends.map(|frontend| (frontend.key, frontend.kind)).collect();
    sort(&mut places);
    places
}

fn sort(places: &mut Vec<(FrontendKey, FrontendKind)>) {
    places.sort_unstable();
    places.dedup_by_key(|(key, _)| *key);
}
