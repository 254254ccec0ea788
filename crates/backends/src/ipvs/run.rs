//! Carrying out the steps of a difference, in the order that keeps traffic whole.

use std::collections::BTreeSet;
use std::time::Instant;

use ferry_host::ipvs::{Change, Server, Virtual, is_gone};
use ferry_model::Family;

use super::diff::{Ops, Retire};
use super::drain::Drain;
use super::prepare;
use super::render::scheduler_flags;
use super::ruleset::Ruleset;
use super::sets::Set;
use super::{Error, Kernel};
use crate::{Retry, Step};

pub(super) struct Runner<'a> {
    pub(super) kernel: &'a mut Kernel,
    pub(super) family: Family,
    /// Number of our interface.
    pub(super) device: u32,
    /// What a service gets whose own scheduler the kernel does not have.
    pub(super) scheduler: &'a str,
    pub(super) drain: &'a mut Drain,
    pub(super) now: Instant,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) warnings: Vec<String>,
}

impl Runner<'_> {
    /// First: sets know of everything new before any of it is served.
    pub(super) fn fill(&mut self, ops: &Ops) -> Result<(), Error> {
        for set in Set::ALL {
            self.kernel.ipset.add(set.name(self.family), &ops.fill[set])?;
        }
        Ok(())
    }

    /// Then, with the rules in place: new servers, then their addresses; then what is no longer wanted, backwards.
    pub(super) fn serve(&mut self, ops: &Ops, want: &Ruleset) -> Result<Ran, Error> {
        let mut ran = Ran::default();
        self.change(&ops.serve, want, &mut ran)?;
        for change in &ops.serve {
            if let Change::EditServer(at, server) = change {
                self.drain.forget(*at, server.at);
            }
        }
        for address in &ops.bind {
            self.kernel.route.add_address(self.device, *address)?;
        }
        for address in &ops.unbind {
            self.kernel.route.remove_address(self.device, *address)?;
        }
        self.retire(&ops.retire)?;
        let remove: Vec<Change> = ops.remove.iter().map(|at| Change::RemoveService(*at)).collect();
        self.change(&remove, want, &mut ran)?;
        for at in &ops.remove {
            self.drain.forget_virtual(*at);
        }
        for set in Set::ALL.into_iter().rev() {
            self.kernel.ipset.delete(set.name(self.family), &ops.empty[set])?;
        }
        Ok(ran)
    }

    /// Makes changes; what is already so is fine, a missing scheduler is replaced, anything else is an error, told only
    /// after everything else was done.
    fn change(&mut self, changes: &[Change], want: &Ruleset, ran: &mut Ran) -> Result<(), Error> {
        self.load_schedulers(changes);
        let mut again = Vec::new();
        let mut without_scheduler: BTreeSet<Virtual> = BTreeSet::new();
        let mut refused = Vec::new();
        for refusal in self.kernel.ipvs.run(changes)? {
            let change = &changes[refusal.index];
            match (change, refusal.errno) {
                (Change::AddService(service) | Change::EditService(service), libc::ENOENT)
                    if service.scheduler != self.scheduler =>
                {
                    without_scheduler.insert(service.at);
                }
                (Change::AddService(service), libc::EEXIST) => {
                    again.push(Change::EditService(service.clone()))
                }
                (Change::AddServer(at, server), libc::EEXIST) => again.push(Change::EditServer(*at, *server)),
                (Change::AddServer(at, _), errno)
                    if is_gone(Some(errno)) && without_scheduler.contains(at) => {}
                (Change::RemoveService(_) | Change::RemoveServer(..), errno) if is_gone(Some(errno)) => {}
                (change, errno) => refused.push(describe(change, errno)),
            }
        }
        for at in without_scheduler {
            again.extend(self.with_default_scheduler(at, want, changes, ran));
        }
        for refusal in self.kernel.ipvs.run(&again)? {
            refused.push(describe(&again[refusal.index], refusal.errno));
        }
        match refused.first() {
            None => Ok(()),
            Some(first) => {
                let attempt = format!("change virtual servers ({} refused)", refused.len());
                Err(Error::new(Step::Write, attempt, Retry::Helps, first.as_str()))
            }
        }
    }

    /// What services ask for besides the default, once for each. In vain is fine: the kernel has the last word.
    fn load_schedulers(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::AddService(service) | Change::EditService(service) = change
                && service.scheduler != self.scheduler
                && self.kernel.schedulers.insert(service.scheduler.clone())
            {
                let _ = prepare::load_scheduler(&service.scheduler);
            }
        }
    }

    fn with_default_scheduler(
        &self,
        at: Virtual,
        want: &Ruleset,
        changes: &[Change],
        ran: &mut Ran,
    ) -> Vec<Change> {
        let Some(wanted) = want.virtual_server(&at) else {
            return Vec::new();
        };
        ran.warnings.push(format!(
            "{}: the kernel has no IPVS scheduler {:?}; {at} uses {}",
            wanted.port, wanted.service.scheduler, self.scheduler
        ));
        let mut service = wanted.service.clone();
        service.scheduler = self.scheduler.to_owned();
        service.flags = scheduler_flags(self.scheduler);
        let is_new = changes
            .iter()
            .any(|change| matches!(change, Change::AddService(new) if new.at == at));
        if !is_new {
            return vec![Change::EditService(service)];
        }
        let servers = changes.iter().filter_map(|change| match change {
            Change::AddServer(of, server) if *of == at => Some(Change::AddServer(at, *server)),
            _ => None,
        });
        std::iter::once(Change::AddService(service))
            .chain(servers)
            .collect()
    }

    /// No new connections from here on; then those without any go, and the others drain.
    fn retire(&mut self, all: &[Retire]) -> Result<(), Error> {
        let mut changes = Vec::new();
        let mut draining: BTreeSet<Virtual> = BTreeSet::new();
        for retire in all {
            if retire.drain.is_zero() {
                self.drain.forget(retire.from, retire.server);
                changes.push(Change::RemoveServer(retire.from, retire.server));
            } else {
                let server = Server {
                    at: retire.server,
                    weight: 0,
                };
                changes.push(Change::EditServer(retire.from, server));
                self.drain
                    .begin(retire.from, retire.server, self.now, retire.drain);
                draining.insert(retire.from);
            }
        }
        for refusal in self.kernel.ipvs.run(&changes)? {
            if !is_gone(Some(refusal.errno)) {
                let change = &changes[refusal.index];
                let reason = describe(change, refusal.errno);
                return Err(Error::new(
                    Step::Write,
                    "retire real servers",
                    Retry::Helps,
                    reason,
                ));
            }
        }
        for at in draining {
            let states = self.kernel.ipvs.servers(at)?;
            let changes = self.drain.step(at, &states, self.now);
            self.kernel.ipvs.run(&changes)?;
        }
        Ok(())
    }
}

fn describe(change: &Change, errno: i32) -> String {
    let why = std::io::Error::from_raw_os_error(errno);
    match change {
        Change::AddService(service) => format!("adding {} ({}): {why}", service.at, service.scheduler),
        Change::EditService(service) => format!("changing {} ({}): {why}", service.at, service.scheduler),
        Change::RemoveService(at) => format!("removing {at}: {why}"),
        Change::AddServer(at, server) => format!("adding {} to {at}: {why}", server.at),
        Change::EditServer(at, server) => format!("changing {} of {at}: {why}", server.at),
        Change::RemoveServer(at, server) => format!("removing {server} from {at}: {why}"),
    }
}
