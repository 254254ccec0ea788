//! What must change so that the table becomes what it should be. Pure.
//!
//! Two ways in, one outcome: [`Diff`] compares everything with an image of the kernel's table, [`replace`] compares
//! one service with what it was before.

use std::collections::HashMap;

use ferry_host::nftables::{Element, Family};

use super::image::{ChainImage, Image, SetImage, element};
use super::ops::{NewChain, Ops, TableOp};
use super::render::{FixedSet, Piece};
use super::ruleset::{Chain, ElementKey, Name, Set, element_key};

/// Compares what should be there, piece by piece, with what is there; what nobody asked for goes at the end.
#[derive(Debug)]
pub(super) struct Diff {
    family: Family,
    have: Image,
    /// Sets that were asked for, with the elements that were not yet.
    kept: HashMap<Name, SetImage>,
    misfit: bool,
    ops: Ops,
}

impl Diff {
    /// Against a table that is there.
    pub(super) fn against(family: Family, have: Image) -> Self {
        Self {
            family,
            have,
            kept: HashMap::new(),
            misfit: false,
            ops: Ops::default(),
        }
    }

    /// Against none, or against one that is not worth keeping.
    pub(super) fn anew(family: Family, table: TableOp) -> Self {
        Self {
            ops: Ops {
                table,
                ..Ops::default()
            },
            ..Self::against(family, Image::default())
        }
    }

    /// Whether everything that is there can be changed in place. If not, the table has to be made anew.
    pub(super) fn fits(&self) -> bool {
        !self.misfit
    }

    /// One that hangs elsewhere in the packets' path than it should does not fit.
    pub(super) fn chain(&mut self, name: &Name, chain: &Chain) {
        let image = ChainImage::of(self.family, chain);
        match self.have.chains.remove(name) {
            None => drop(self.ops.new_chains.insert(
                name.clone(),
                NewChain {
                    image,
                    comment: chain.comment,
                },
            )),
            Some(have) if have.base != image.base => self.misfit = true,
            Some(have) if have.rules != image.rules => {
                drop(self.ops.changed_chains.insert(name.clone(), image))
            }
            Some(_) => {}
        }
    }

    /// A set with the elements that are known already; more may follow. One of another kind than what is there does
    /// not fit.
    pub(super) fn set(&mut self, name: &Name, set: &Set) {
        match self.have.sets.remove(name) {
            None => drop(self.ops.new_sets.insert(name.clone(), set.decl.clone())),
            Some(have) if have.decl != set.decl => self.misfit = true,
            Some(have) => drop(self.kept.insert(name.clone(), have)),
        }
        for element in set.elements.values() {
            self.element(name, element.clone());
        }
    }

    pub(super) fn element(&mut self, set: &str, wanted: Element) {
        let key = element_key(&wanted);
        match self.kept.get_mut(set).and_then(|set| set.elements.remove(&key)) {
            None => self.ops.add(set, wanted),
            Some(have) if have == (wanted.value.clone(), wanted.comment.clone()) => {}
            Some(have) => {
                self.ops.delete(set, element(key, have));
                self.ops.add(set, wanted);
            }
        }
    }

    /// The outcome.
    pub(super) fn finish(mut self) -> Ops {
        self.ops.removed_chains.extend(self.have.chains.into_keys());
        self.ops.removed_sets.extend(self.have.sets.keys().cloned());
        for (name, set) in self.kept.into_iter().chain(self.have.sets) {
            for (key, content) in set.elements {
                self.ops.delete(&name, element(key, content));
            }
        }
        self.ops
            .deleted
            .values_mut()
            .for_each(|elements| elements.sort_by_key(element_key));
        self.ops
    }
}

/// What one service has of its own in the table.
#[derive(Debug, Default)]
struct Own {
    elements: HashMap<(FixedSet, ElementKey), Element>,
    chains: HashMap<Name, Chain>,
    sets: HashMap<Name, Set>,
}

/// Puts the new pieces of a service in place of its old ones. What it shares with others is not looked at here.
pub(super) fn replace(family: Family, old: Vec<Piece>, new: Vec<Piece>, ops: &mut Ops) {
    let mut have = Own::default();
    for piece in old {
        match piece {
            Piece::Element(set, element) => drop(have.elements.insert((set, element_key(&element)), element)),
            Piece::Chain(name, chain) => drop(have.chains.insert(name, chain)),
            Piece::Set(name, set) => drop(have.sets.insert(name, set)),
            Piece::Shared(_) => {}
        }
    }
    for piece in new {
        match piece {
            Piece::Element(set, wanted) => {
                let old = have.elements.remove(&(set, element_key(&wanted)));
                replace_element(set.name(), old, wanted, ops);
            }
            Piece::Chain(name, chain) => {
                let image = |chain: &Chain| ChainImage::of(family, chain);
                match have.chains.remove(&name) {
                    None => {
                        let new = NewChain {
                            image: image(&chain),
                            comment: chain.comment,
                        };
                        ops.new_chains.insert(name, new);
                    }
                    Some(old) if old.rules != chain.rules => {
                        drop(ops.changed_chains.insert(name, image(&chain)))
                    }
                    Some(_) => {}
                }
            }
            Piece::Set(name, set) => {
                let mut old = match have.sets.remove(&name) {
                    Some(old) => old.elements,
                    None => {
                        ops.new_sets.insert(name.clone(), set.decl);
                        Default::default()
                    }
                };
                for (key, wanted) in set.elements {
                    replace_element(&name, old.remove(&key), wanted, ops);
                }
                old.into_values().for_each(|element| ops.delete(&name, element));
            }
            Piece::Shared(_) => {}
        }
    }
    for ((set, _), element) in have.elements {
        ops.delete(set.name(), element);
    }
    for (name, set) in have.sets {
        set.elements
            .into_values()
            .for_each(|element| ops.delete(&name, element));
        ops.removed_sets.insert(name);
    }
    ops.removed_chains.extend(have.chains.into_keys());
}

fn replace_element(set: &str, old: Option<Element>, new: Element, ops: &mut Ops) {
    if old.as_ref() == Some(&new) {
        return;
    }
    if let Some(old) = old {
        ops.delete(set, old);
    }
    ops.add(set, new);
}
