//! One family's side of the backend: what is known to be in the kernel, and the way to what should be.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_host::nftables::{Client, Error};
use ferry_model::{Changed, Plan, Revision, ServiceName, ServicePlan};

use super::diff::{Diff, replace};
use super::image::{ChainImage, Observed, observe};
use super::ledger::Ledger;
use super::names;
use super::ops::{NewChain, Ops, TableOp};
use super::render::{self, Context, Piece, Shared};

/// What is in the kernel, for all we know.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) context: Context,
    pub(super) revision: Revision,
    /// The services that have something in the table, as they were when it was written.
    pub(super) services: HashMap<ServiceName, Arc<ServicePlan>>,
    ledger: Ledger,
}

impl Known {
    /// What has to change for the services that did, without asking the kernel.
    pub(super) fn update(&mut self, plan: &Plan) -> Option<Ops> {
        let Changed::Services(names) = plan.changed_since(self.revision) else {
            return None;
        };
        let mut ops = Ops::default();
        for name in names {
            let old = self.services.remove(name);
            let new = plan.service(name);
            let pieces = |plan: Option<&Arc<ServicePlan>>| {
                plan.map(|plan| render::service(plan, &self.context))
                    .unwrap_or_default()
            };
            let (old, new_pieces) = (pieces(old.as_ref()), pieces(new));
            self.ledger.take(&new_pieces);
            self.ledger.release(&old);
            if let Some(new) = new.filter(|_| !new_pieces.is_empty()) {
                self.services.insert(name.clone(), Arc::clone(new));
            }
            replace(self.context.family, old, new_pieces, &mut ops);
        }
        let (new, gone) = self.ledger.settle();
        new.iter()
            .for_each(|shared| appear(shared, &self.context, &mut ops));
        gone.iter()
            .for_each(|shared| vanish(shared, &self.context, &mut ops));
        self.revision = plan.revision();
        Some(ops)
    }
}

fn appear(shared: &Shared, context: &Context, ops: &mut Ops) {
    let objects = shared.own_objects(context);
    for (name, chain) in objects.chains {
        let image = ChainImage::of(context.family, &chain);
        ops.new_chains.insert(
            name,
            NewChain {
                image,
                comment: chain.comment,
            },
        );
    }
    for (name, set) in objects.sets {
        ops.new_sets.insert(name.clone(), set.decl);
        set.elements
            .into_values()
            .for_each(|element| ops.add(&name, element));
    }
    for (set, element) in objects.elements {
        ops.add(set.name(), element);
    }
}

fn vanish(shared: &Shared, context: &Context, ops: &mut Ops) {
    let objects = shared.own_objects(context);
    ops.removed_chains
        .extend(objects.chains.into_iter().map(|(name, _)| name));
    for (name, set) in objects.sets {
        set.elements
            .into_values()
            .for_each(|element| ops.delete(&name, element));
        ops.removed_sets.insert(name);
    }
    for (set, element) in objects.elements {
        ops.delete(set.name(), element);
    }
}

/// What has to change for everything, compared with what the kernel has.
pub(super) fn compare(
    client: &mut Client,
    plan: &Plan,
    context: &Context,
    anew: bool,
) -> Result<(Ops, Known), Error> {
    let family = context.family;
    let observed = match anew {
        true if client.has_table(family, names::TABLE)? => Observed::Foreign,
        true => Observed::Nothing,
        false => observe(client, family)?,
    };
    let fresh = match observed {
        Observed::Nothing => TableOp::Create,
        Observed::Foreign => TableOp::Recreate,
        Observed::Ours(image) => {
            let (diff, known) = want(Diff::against(family, image), plan, context);
            if diff.fits() {
                return Ok((diff.finish(), known));
            }
            TableOp::Recreate
        }
    };
    let (diff, known) = want(Diff::anew(family, fresh), plan, context);
    Ok((diff.finish(), known))
}

/// Asks a diff for everything that the plan needs.
pub(super) fn want(mut diff: Diff, plan: &Plan, context: &Context) -> (Diff, Known) {
    let fixed = render::fixed(context);
    fixed
        .chains
        .iter()
        .for_each(|(name, chain)| diff.chain(name, chain));
    fixed.sets.iter().for_each(|(name, set)| diff.set(name, set));
    let mut known = Known {
        context: context.clone(),
        revision: plan.revision(),
        services: HashMap::new(),
        ledger: Ledger::default(),
    };
    for service in plan.services() {
        let pieces = render::service(service, context);
        if pieces.is_empty() {
            continue;
        }
        known.ledger.take(&pieces);
        known.services.insert(service.name.clone(), Arc::clone(service));
        for piece in pieces {
            match piece {
                Piece::Element(set, element) => diff.element(set.name(), element),
                Piece::Chain(name, chain) => diff.chain(&name, &chain),
                Piece::Set(name, set) => diff.set(&name, &set),
                Piece::Shared(_) => {}
            }
        }
    }
    for shared in known.ledger.settle().0 {
        let objects = shared.own_objects(context);
        for (name, chain) in &objects.chains {
            diff.chain(name, chain);
        }
        for (name, set) in &objects.sets {
            diff.set(name, set);
        }
        for (set, element) in objects.elements {
            diff.element(set.name(), element);
        }
    }
    (diff, known)
}
