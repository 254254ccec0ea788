//! From what the loop did to entries, each of bounded size.

use std::time::Duration;

use ferry_model::{
    Action, Actions, Before, Decision, Move, Replaced, Scope, Skipped, Snapshot, Update, Way, decisions,
    moves,
};
use ferry_sources::ChangedObject;

use super::Sync;
use super::report::{ChangedPort, MoveReport, ObjectReport, RepairReport, ServiceChange, What};
use crate::bounded::bounded;
use crate::status::word;

/// How much of a large change is told; the rest is counted.
const OBJECTS: usize = 20;
const SERVICES: usize = 50;
const MOVES: usize = 20;
const DECISIONS: usize = 10;
const REFUSED: usize = 20;
const REPAIRS: usize = 20;
/// No text is longer.
const TEXT: usize = 512;

pub(super) fn changed(
    objects: &[ChangedObject],
    update: &Update,
    before: &Before,
    snapshot: &Snapshot,
    plan: Duration,
) -> What {
    let object = |object: &ChangedObject| ObjectReport {
        object: object.id.to_string(),
        version: object.version,
        gone: object.gone,
    };
    let told = update.replaced.iter().take(SERVICES);
    What::Changed {
        objects: objects.iter().take(OBJECTS).map(object).collect(),
        more_objects: objects.len().saturating_sub(OBJECTS),
        node: update.node_changed,
        services: told.map(|replaced| service(replaced, before, snapshot)).collect(),
        more_services: update.replaced.len().saturating_sub(SERVICES),
        plan_seconds: plan.as_secs_f64(),
        in_force: Vec::new(),
    }
}

fn service(replaced: &Replaced, before: &Before, snapshot: &Snapshot) -> ServiceChange {
    let name = replaced.new.as_ref().or(replaced.old.as_ref());
    let moves = moves(replaced, before, snapshot, MOVES);
    ServiceChange {
        service: name.map(|service| service.name.to_string()).unwrap_or_default(),
        what: match (&replaced.old, &replaced.new) {
            (None, _) => "added",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        }
        .into(),
        moves: moves.told.into_iter().map(moved).collect(),
        more_moves: moves.more,
        frontends: decisions(replaced, DECISIONS).into_iter().map(decided).collect(),
    }
}

fn moved(moved: Move) -> MoveReport {
    MoveReport {
        port: moved.port.to_string(),
        endpoint: moved.endpoint,
        way: match moved.way {
            Way::Joined => "joined",
            Way::Left => "left",
        }
        .into(),
        pools: moved.pools.as_str().into(),
        why: bounded(moved.why, TEXT),
    }
}

fn decided(decision: Decision) -> ChangedPort {
    let words = |actions: Option<Actions>| match actions {
        None => "not there".to_owned(),
        Some(actions) => match actions.uniform() {
            Some(action) => phrase(action),
            None => format!(
                "{} for pods, {} for the node, {} for others",
                phrase(actions.pods),
                phrase(actions.node),
                phrase(actions.others)
            ),
        },
    };
    ChangedPort {
        port: decision.port.to_string(),
        frontend: format!("{} {}/{}", decision.kind, decision.key, decision.port.protocol),
        before: words(decision.before),
        after: words(decision.after),
    }
}

fn phrase(action: Action) -> String {
    let pool = match action.scope() {
        Some(Scope::Local) => " to the local pool",
        Some(Scope::Cluster) | None => "",
    };
    let masqueraded = if action.masquerades() { " masqueraded" } else { "" };
    format!("{}{pool}{masqueraded}", word(action))
}

pub(super) fn synced(sync: &Sync<'_>) -> What {
    let applied = sync.applied;
    let repair = |repair: &ferry_backends::Repair| RepairReport {
        what: bounded(repair.what.clone(), TEXT),
        by: repair.by.clone().map(|by| bounded(by, TEXT)),
    };
    let text = |text: &String| bounded(text.clone(), TEXT);
    What::Synced {
        family: sync.family.as_str().to_owned(),
        sync: sync.number,
        full: applied.full,
        changes: sync.changes,
        apply_seconds: sync.apply.as_secs_f64(),
        after_seconds: sync.after.as_secs_f64(),
        added: applied.added,
        removed: applied.removed,
        repaired: applied.repaired.iter().take(REPAIRS).map(repair).collect(),
        more_repaired: applied.repaired.len().saturating_sub(REPAIRS),
        warnings: applied.warnings.iter().take(REFUSED).map(text).collect(),
    }
}

pub(super) fn refused(skipped: &[Skipped]) -> What {
    let told = skipped.iter().take(REFUSED);
    What::Refused {
        objects: told.map(|skipped| bounded(skipped.to_string(), TEXT)).collect(),
        more: skipped.len().saturating_sub(REFUSED),
    }
}
