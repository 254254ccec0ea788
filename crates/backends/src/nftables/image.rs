//! The table as the kernel has it: what can be read back, compared and written.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_host::nftables::{BaseChain, Client, Element, Error, Family, Key, Rule, SetDecl, Value};

use super::compile;
use super::names;
use super::ruleset::{Chain, ElementKey, Name, Ruleset, Set, element_key};

/// A table of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) chains: HashMap<Name, ChainImage>,
    pub(super) sets: HashMap<Name, SetImage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainImage {
    pub(super) base: Option<BaseChain>,
    pub(super) rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetImage {
    pub(super) decl: SetDecl,
    pub(super) elements: HashMap<ElementKey, Content>,
}

/// What an element has besides its key.
pub(super) type Content = (Value, Option<Arc<str>>);

impl ChainImage {
    pub(super) fn of(family: Family, chain: &Chain) -> Self {
        Self {
            base: chain.base,
            rules: chain
                .rules
                .iter()
                .map(|rule| compile::rule(family, rule))
                .collect(),
        }
    }
}

impl SetImage {
    pub(super) fn of(set: &Set) -> Self {
        let content = |element: &Element| (element.value.clone(), element.comment.clone());
        Self {
            decl: set.decl.clone(),
            elements: set
                .elements
                .iter()
                .map(|(key, element)| (*key, content(element)))
                .collect(),
        }
    }
}

/// An element from its parts.
pub(super) fn element((key, interval_end): ElementKey, (value, comment): Content) -> Element {
    Element {
        key,
        interval_end,
        value,
        comment,
    }
}

impl From<&Ruleset> for Image {
    fn from(ruleset: &Ruleset) -> Self {
        let chain = |(name, chain): (&Name, &Chain)| (name.clone(), ChainImage::of(ruleset.family, chain));
        Self {
            chains: ruleset.chains.iter().map(chain).collect(),
            sets: ruleset
                .sets
                .iter()
                .map(|(name, set)| (name.clone(), SetImage::of(set)))
                .collect(),
        }
    }
}

/// What is there.
#[derive(Debug)]
pub(super) enum Observed {
    Nothing,
    /// A table with objects that are not of our kind: kube-proxy's own, for example.
    Foreign,
    Ours(Image),
}

/// Reads the table of a family.
pub(super) fn observe(client: &mut Client, family: Family) -> Result<Observed, Error> {
    if !client.has_table(family, names::TABLE)? {
        return Ok(Observed::Nothing);
    }
    let info = client.table(family, names::TABLE)?;
    if !info.foreign.is_empty() {
        return Ok(Observed::Foreign);
    }
    let mut image = Image::default();
    for chain in info.chains {
        image.chains.insert(
            chain.name,
            ChainImage {
                base: chain.base,
                rules: Vec::new(),
            },
        );
    }
    for (chain, rule) in info.rules {
        if let Some(chain) = image.chains.get_mut(&chain) {
            chain.rules.push(rule);
        }
    }
    for decl in info.sets {
        let elements = if decl.dynamic {
            Some(HashMap::new())
        } else {
            elements(client, family, &decl)?
        };
        let Some(elements) = elements else {
            return Ok(Observed::Foreign);
        };
        image
            .sets
            .insert(Arc::clone(&decl.name), SetImage { decl, elements });
    }
    Ok(Observed::Ours(image))
}

/// The elements of a set; `None` if one is not of our kind.
fn elements(
    client: &mut Client,
    family: Family,
    decl: &SetDecl,
) -> Result<Option<HashMap<ElementKey, Content>>, Error> {
    client.elements(
        family,
        names::TABLE,
        &decl.name,
        || Some(HashMap::new()),
        |all, found| match found {
            // `nft` marks the space before the first interval; it means nothing.
            Some((element, _)) if element.interval_end && is_zero(&element.key) => {}
            Some((element, _)) => {
                if let Some(all) = all {
                    all.insert(element_key(&element), (element.value, element.comment));
                }
            }
            None => *all = None,
        },
    )
}

fn is_zero(key: &Key) -> bool {
    key.as_slice().iter().all(|byte| *byte == 0)
}
