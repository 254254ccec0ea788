//! A transaction under construction: one datagram, all or nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::bytes::Key;
use super::set::{Element, SetDecl};
use super::{ChainDecl, Family, Flowtable, Rule, SUBSYSTEM, attr, msg, userdata};
use crate::netlink::{Refusal, Writer, attrs};

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const BATCH_GENERATION: u16 = 1;
const RESOURCE: u16 = 10;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// A list's length is 16 bits; this leaves room for the largest element.
const LIST_BYTES: usize = 60_000;
const POLICY_ACCEPT: u32 = 1;
/// The hook of a device.
const INGRESS: u32 = 0;

/// What a message of a transaction is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Transaction,
    Table,
    Chain(Arc<str>),
    Rule {
        chain: Arc<str>,
        index: usize,
    },
    Set(Arc<str>),
    Flowtable(Arc<str>),
    /// Elements of a set; the one to blame, where the kernel tells.
    Elements {
        set: Arc<str>,
        key: Option<Key>,
    },
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transaction => f.write_str("the transaction"),
            Self::Table => f.write_str("the table"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Rule { chain, index } => write!(f, "rule {index} of chain {chain}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Flowtable(name) => write!(f, "flowtable {name}"),
            Self::Elements { set, key: Some(key) } => write!(f, "element {key:?} of set {set}"),
            Self::Elements { set, key: None } => write!(f, "elements of set {set}"),
        }
    }
}

/// Whose a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    /// The socket that makes it: nobody else may change it, and it goes when the socket is closed.
    Socket,
}

/// Changes of one table that become true together or not at all. Kept small enough for the kernel in its parts:
/// lists of elements are cut into several messages.
#[derive(Debug)]
pub struct Batch {
    family: Family,
    table: Box<str>,
    writer: Writer,
    /// What each message is about, where it starts; its sequence number is its index.
    messages: Vec<(usize, Object)>,
    set_id: u32,
    elements: usize,
}

impl Batch {
    /// An empty transaction. With a generation, the kernel refuses it if anything was changed since.
    pub fn new(family: Family, table: &str, generation: Option<u32>) -> Self {
        let mut batch = Self {
            family,
            table: table.into(),
            writer: Writer::with_capacity(4096),
            messages: Vec::new(),
            set_id: 0,
            elements: 0,
        };
        batch.messages.push((0, Object::Transaction));
        batch.writer.message(BATCH_BEGIN, REQUEST, 0, |w| {
            w.netfilter_header(0, RESOURCE);
            if let Some(generation) = generation {
                w.be32(BATCH_GENERATION, generation);
            }
        });
        batch
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.messages.len() == 1
    }

    /// How many elements are added or deleted.
    pub fn elements(&self) -> usize {
        self.elements
    }

    pub fn add_table(&mut self, comment: &str) {
        self.add_table_of(comment, Owner::Nobody);
    }

    pub(super) fn add_table_of(&mut self, comment: &str, owner: Owner) {
        const OWNED: u32 = 0x2;
        let name = self.table.clone();
        self.put(msg::NEW_TABLE, CREATE, Object::Table, |w| {
            w.str(attr::TABLE_NAME, &name);
            w.be32(
                attr::TABLE_FLAGS,
                match owner {
                    Owner::Nobody => 0,
                    Owner::Socket => OWNED,
                },
            );
            w.attr(attr::TABLE_USERDATA, &userdata::comment(comment));
        });
    }

    /// Deletes the table with everything in it.
    pub fn delete_table(&mut self) {
        let name = self.table.clone();
        self.put(msg::DEL_TABLE, 0, Object::Table, |w| {
            w.str(attr::TABLE_NAME, &name)
        });
    }

    pub fn add_chain(&mut self, chain: &ChainDecl) {
        let table = self.table.clone();
        self.put(
            msg::NEW_CHAIN,
            CREATE,
            Object::Chain(Arc::clone(&chain.name)),
            |w| {
                w.str(attr::CHAIN_TABLE, &table);
                w.str(attr::CHAIN_NAME, &chain.name);
                if let Some(base) = &chain.base {
                    w.nest(attr::CHAIN_HOOK, |w| {
                        w.be32(attr::HOOK_NUMBER, base.hook.number());
                        w.be32(attr::HOOK_PRIORITY, base.priority as u32);
                    });
                    w.be32(attr::CHAIN_POLICY, POLICY_ACCEPT);
                    w.str(attr::CHAIN_TYPE, base.kind.as_str());
                }
                if let Some(comment) = &chain.comment {
                    w.attr(attr::CHAIN_USERDATA, &userdata::comment(comment));
                }
            },
        );
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, name: &Arc<str>) {
        let table = self.table.clone();
        self.put(msg::DEL_RULE, 0, Object::Chain(Arc::clone(name)), |w| {
            w.str(attr::RULE_TABLE, &table);
            w.str(attr::RULE_CHAIN, name);
        });
    }

    /// Deletes a chain that nothing leads to any more.
    pub fn delete_chain(&mut self, name: &Arc<str>) {
        let table = self.table.clone();
        self.put(msg::DEL_CHAIN, 0, Object::Chain(Arc::clone(name)), |w| {
            w.str(attr::CHAIN_TABLE, &table);
            w.str(attr::CHAIN_NAME, name);
        });
    }

    /// Appends rules to a chain.
    pub fn add_rules<'a>(&mut self, chain: &Arc<str>, rules: impl IntoIterator<Item = &'a Rule>) {
        let table = self.table.clone();
        for (index, rule) in rules.into_iter().enumerate() {
            let object = Object::Rule {
                chain: Arc::clone(chain),
                index,
            };
            self.put(msg::NEW_RULE, CREATE | APPEND, object, |w| {
                w.str(attr::RULE_TABLE, &table);
                w.str(attr::RULE_CHAIN, chain);
                w.nest(attr::RULE_EXPRESSIONS, |w| {
                    rule.expressions.iter().for_each(|expr| expr.encode(w))
                });
                if let Some(comment) = &rule.comment {
                    w.attr(attr::RULE_USERDATA, &userdata::comment(comment));
                }
            });
        }
    }

    /// Makes a flowtable, or adds devices to the one that is there.
    pub fn add_flowtable(&mut self, flowtable: &Flowtable) {
        let table = self.table.clone();
        let object = Object::Flowtable(Arc::clone(&flowtable.name));
        self.put(msg::NEW_FLOWTABLE, CREATE, object, |w| {
            w.str(attr::FLOWTABLE_TABLE, &table);
            w.str(attr::FLOWTABLE_NAME, &flowtable.name);
            w.nest(attr::FLOWTABLE_HOOK, |w| {
                w.be32(attr::FLOWTABLE_HOOK_NUMBER, INGRESS);
                w.be32(attr::FLOWTABLE_HOOK_PRIORITY, flowtable.priority as u32);
                w.nest(attr::FLOWTABLE_HOOK_DEVICES, |w| {
                    let devices = flowtable.devices.iter();
                    devices.for_each(|device| w.str(attr::DEVICE_NAME, device));
                });
            });
        });
    }

    pub fn add_set(&mut self, set: &SetDecl) {
        let table = self.table.clone();
        self.set_id += 1;
        let id = self.set_id;
        self.put(msg::NEW_SET, CREATE, Object::Set(Arc::clone(&set.name)), |w| {
            set.encode(&table, id, w)
        });
    }

    /// Deletes a set that no rule uses any more.
    pub fn delete_set(&mut self, name: &Arc<str>) {
        let table = self.table.clone();
        self.put(msg::DEL_SET, 0, Object::Set(Arc::clone(name)), |w| {
            w.str(attr::SET_TABLE, &table);
            w.str(attr::SET_NAME, name);
        });
    }

    pub fn add_elements<'a>(&mut self, set: &Arc<str>, elements: impl IntoIterator<Item = &'a Element>) {
        self.put_elements(msg::NEW_ELEMENT, CREATE, set, elements, Element::encode);
    }

    /// Adds an element that goes by itself after a time.
    pub(super) fn add_element_for(&mut self, set: &Arc<str>, element: &Element, lifetime: Duration) {
        let encode = |element: &Element, w: &mut Writer| {
            element.encode(w);
            w.be64(attr::ELEMENT_TIMEOUT, lifetime.as_millis() as u64);
        };
        self.put_elements(msg::NEW_ELEMENT, CREATE, set, [element], encode);
    }

    pub fn delete_elements<'a>(&mut self, set: &Arc<str>, elements: impl IntoIterator<Item = &'a Element>) {
        self.put_elements(msg::DEL_ELEMENT, 0, set, elements, Element::encode_key);
    }

    fn put_elements<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        set: &Arc<str>,
        elements: impl IntoIterator<Item = &'a Element>,
        encode: impl Fn(&Element, &mut Writer),
    ) {
        let table = self.table.clone();
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            let mut written = 0;
            let object = Object::Elements {
                set: Arc::clone(set),
                key: None,
            };
            self.put(kind, flags, object, |w| {
                w.str(attr::ELEMENTS_TABLE, &table);
                w.str(attr::ELEMENTS_SET, set);
                w.nest(attr::ELEMENTS_LIST, |w| {
                    let start = w.len();
                    while let Some(element) = elements.next_if(|_| w.len() - start < LIST_BYTES) {
                        w.nest(attr::LIST_ITEM, |w| encode(element, w));
                        written += 1;
                    }
                });
            });
            self.elements += written;
        }
    }

    fn put(&mut self, kind: u16, flags: u16, object: Object, body: impl FnOnce(&mut Writer)) {
        let seq = self.messages.len() as u32;
        self.messages.push((self.writer.len(), object));
        let family = self.family.number();
        self.writer.message(SUBSYSTEM | kind, REQUEST | flags, seq, |w| {
            w.netfilter_header(family, 0);
            body(w);
        });
    }

    /// The finished datagram.
    pub(super) fn finish(&mut self) -> &Writer {
        let seq = self.messages.len() as u32;
        self.writer
            .message(BATCH_END, REQUEST, seq, |w| w.netfilter_header(0, RESOURCE));
        &self.writer
    }

    /// What a refused message was about.
    pub(super) fn blame(&self, refusal: &Refusal) -> Object {
        let Some((start, object)) = self.messages.get(refusal.seq as usize) else {
            return Object::Transaction;
        };
        match object {
            Object::Elements { set, .. } => {
                let key = refusal
                    .offset
                    .and_then(|offset| self.element_at(*start, offset as usize));
                Object::Elements {
                    set: Arc::clone(set),
                    key,
                }
            }
            other => other.clone(),
        }
    }

    /// The key of the element that contains the byte at `offset` of the message that starts at `start`.
    fn element_at(&self, start: usize, offset: usize) -> Option<Key> {
        let message = crate::netlink::messages(self.writer.bytes().get(start..)?).next()?;
        let list = message.netfilter_attrs().get(attr::ELEMENTS_LIST)?;
        let base = self.writer.bytes().as_ptr() as usize + start;
        let element = attrs(list.data).find(|item| {
            let first = item.data.as_ptr() as usize - 4 - base;
            (first..first + 4 + item.data.len()).contains(&offset)
        })?;
        Key::read(
            element
                .nested()
                .get(attr::ELEMENT_KEY)?
                .nested()
                .get(attr::DATA_VALUE)?
                .data,
        )
    }
}
