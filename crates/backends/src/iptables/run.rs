//! Doing it: documents into the restore program, one after the other.

use ferry_host::iptables::{self, Failure, Flavour, Iptables};
use ferry_model::ServiceName;

use super::names::Table;
use super::ops::{Document, NFT_CHAINS, Ops, Owner};
use super::ruleset::Counts;
use crate::Retry;
use crate::error::Cause;

/// How many refused services and undeletable chains are worked around before giving up.
const WORKAROUNDS: usize = 50;

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) added: usize,
    pub(super) removed: usize,
    /// Rules written, by table.
    pub(super) written: Counts,
    pub(super) warnings: Vec<String>,
    /// Services that the kernel or the program did not take, with the reason.
    pub(super) refused: Vec<(ServiceName, String)>,
    /// Restores that failed and were worked around.
    pub(super) failures: usize,
}

/// What to do when a document is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Stop: what was assumed about the tables may be wrong.
    Stop,
    /// Leave out the service or the deletion that is to blame, and go on.
    LeaveOut,
}

pub(super) fn run(tool: &Iptables, ops: &Ops, refusal: Refusal) -> Result<Done, Failed> {
    let limit = match tool.flavour() {
        Flavour::Nft => NFT_CHAINS,
        // The kernel copies the whole table for every document, so there is just one.
        Flavour::Legacy => usize::MAX,
    };
    let mut done = Done::default();
    for mut document in ops.documents(limit) {
        for (service, _) in &done.refused {
            document.without(&Owner::Service(service.clone()));
        }
        restore(tool, document, refusal, &mut done)?;
    }
    Ok(done)
}

/// A restore that was refused.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: iptables::Error,
    /// Whose rule it was.
    pub(super) owner: Option<Owner>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(owner) = &self.owner {
            write!(f, "{owner}: ")?;
        }
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Cause for Failed {
    fn retry(&self) -> Retry {
        self.error.retry()
    }
}

fn restore(tool: &Iptables, mut document: Document, refusal: Refusal, done: &mut Done) -> Result<(), Failed> {
    let count = |document: &Document, done: &mut Done| {
        done.added += document.added();
        done.removed += document.removed();
        done.written.add(Counts {
            filter: document.written(Table::Filter),
            nat: document.written(Table::Nat),
        });
    };
    while !document.is_empty() {
        let error = match tool.restore(&document) {
            Ok(restored) => {
                count(&document, done);
                done.warnings.extend(restored.lock.map(|wait| {
                    format!(
                        "{} held the xtables lock for {:.1} s",
                        wait.holder,
                        wait.held.as_secs_f32()
                    )
                }));
                return Ok(());
            }
            Err(error) => error,
        };
        let owner = match &error {
            iptables::Error::Restore(failure) => failure.line.and_then(|line| document.owner(line)).cloned(),
            _ => None,
        };
        let failed = Failed { error, owner };
        if refusal == Refusal::Stop || done.failures >= WORKAROUNDS {
            return Err(failed);
        }
        leave_out(&mut document, failed, done)?;
        done.failures += 1;
    }
    Ok(())
}

/// Takes out of a document what was refused.
fn leave_out(document: &mut Document, failed: Failed, done: &mut Done) -> Result<(), Failed> {
    let iptables::Error::Restore(failure) = &failed.error else {
        return Err(failed);
    };
    let Failure {
        line: Some(line),
        input: Some(input),
        message,
        ..
    } = &**failure
    else {
        return Err(failed);
    };
    document.without_committed(*line);
    match (&failed.owner, input.strip_prefix("-X ")) {
        (_, Some(chain)) => {
            done.warnings.push(format!(
                "chain {chain} stays, something else refers to it: {message}"
            ));
            document.without_deletion(chain);
            Ok(())
        }
        (Some(Owner::Service(service)), None) => {
            document.without(&Owner::Service(service.clone()));
            done.refused.push((service.clone(), failure.to_string()));
            Ok(())
        }
        (Some(Owner::Node) | None, None) => Err(failed),
    }
}
