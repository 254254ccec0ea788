//! What the table holds for one service port: its elements by their keys, the chains that packets pass on the way.

use std::collections::BTreeMap;

use ferry_host::nftables::{Client, Element, Error};
use ferry_model::PortPlan;

use super::image::ChainImage;
use super::names;
use super::render::{self, Context, FixedSet, Piece};
use super::ruleset::{Chain, Name, Set, element};
use crate::{Inspection, Presence};

pub(super) fn inspect(client: &mut Client, port: &PortPlan, context: &Context) -> Result<Inspection, Error> {
    let mut reader = Reader {
        client,
        context,
        found: Inspection::default(),
        fixed: render::fixed(context).sets,
    };
    let table = format!("table {} {}", context.family.as_str(), names::TABLE);
    if !reader.client.has_table(context.family, names::TABLE)? {
        reader.found.add(table, Presence::Missing);
        return Ok(reader.found);
    }
    reader.found.add(table, Presence::Present);
    for (name, chain) in &render::fixed(context).chains {
        reader.chain(name, chain)?;
    }
    for piece in render::port(port, context) {
        match piece {
            Piece::Element(set, element) => reader.element(set, &element)?,
            Piece::Chain(name, chain) => reader.chain(&name, &chain)?,
            // Rules fill it.
            Piece::Set(..) => {}
            Piece::Shared(shared) => {
                let objects = shared.objects(context);
                for (name, chain) in &objects.chains {
                    reader.chain(name, chain)?;
                }
                for (set, element) in &objects.elements {
                    reader.element(*set, element)?;
                }
            }
        }
    }
    Ok(reader.found)
}

struct Reader<'a> {
    client: &'a mut Client,
    context: &'a Context,
    found: Inspection,
    fixed: BTreeMap<Name, Set>,
}

impl Reader<'_> {
    fn chain(&mut self, name: &str, chain: &Chain) -> Result<(), Error> {
        let family = self.context.family;
        let wanted = ChainImage::of(family, chain);
        let base = self.client.chain(family, names::TABLE, name)?;
        let found = match base {
            None => None,
            Some(decl) => {
                let rules = self.client.rules(family.number(), names::TABLE, name)?;
                Some(ChainImage {
                    base: decl.base,
                    rules: rules.into_iter().map(|(_, rule)| rule).collect(),
                })
            }
        };
        let what = format!("chain {name} ({} rules)", wanted.rules.len());
        self.found.add(what, Presence::compare(&wanted, found.as_ref()));
        Ok(())
    }

    fn element(&mut self, set: FixedSet, wanted: &Element) -> Result<(), Error> {
        let name = set.name();
        let Some(decl) = self
            .fixed
            .get(name)
            .map(|set| &set.decl)
            .filter(|decl| !decl.interval)
        else {
            return Ok(());
        };
        let mut shown = decl.clone();
        shown.counter = false;
        let what = format!("element of {name}: {}", element(&shown, wanted));
        let found = self
            .client
            .element(self.context.family, names::TABLE, name, &wanted.key)?;
        let packets = found.as_ref().and_then(|(_, counter)| *counter);
        let presence = Presence::compare(&wanted.value, found.as_ref().map(|(found, _)| &found.value));
        self.found
            .add_counted(what, presence, packets.map(|counter| counter.packets));
        Ok(())
    }
}
