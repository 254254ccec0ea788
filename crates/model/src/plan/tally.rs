//! Sums over a plan, kept up to date with each change.

use super::ServicePlan;
use crate::names::PerFamily;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub services: usize,
    pub families: PerFamily<FamilyTally>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyTally {
    pub ports: usize,
    /// Known endpoints, usable or not.
    pub endpoints: usize,
    /// Service ports with a Local policy that endpoints elsewhere could serve, but none here.
    pub no_local_internal: usize,
    pub no_local_external: usize,
}

impl Tally {
    pub(super) fn add(&mut self, service: &ServicePlan) {
        self.services += 1;
        self.each(service, |sum, one| *sum += one);
    }

    pub(super) fn subtract(&mut self, service: &ServicePlan) {
        self.services -= 1;
        self.each(service, |sum, one| *sum -= one);
    }

    fn each(&mut self, service: &ServicePlan, apply: impl Fn(&mut usize, usize)) {
        for port in &service.ports {
            let family = self.families.get_mut(port.family);
            apply(&mut family.ports, 1);
            apply(&mut family.endpoints, port.endpoints.len());
            apply(
                &mut family.no_local_internal,
                usize::from(port.lacks_local_internally()),
            );
            apply(
                &mut family.no_local_external,
                usize::from(port.lacks_local_externally()),
            );
        }
    }
}
