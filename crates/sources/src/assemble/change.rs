//! One changed object on its way from a source to the mailbox.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use ferry_model::{Event, Family, ObjectRef, ServiceName, Skipped, SliceName};

use super::Kind;
use crate::bounded;
use crate::convert::{self, Converted, Interner};
use crate::objects::{Object, Shape};

/// The identity of an object. Shares the text of its name with the fact that the object became.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    Service(ServiceName),
    Slice(SliceName),
    /// core/v1 Endpoints, named as their Service.
    Endpoints(ServiceName),
    Node(Arc<str>),
    ServiceCidr(Arc<str>),
}

impl ObjectId {
    pub fn new(shape: Shape, namespace: &str, name: &str, interner: &Interner) -> Self {
        match shape {
            Shape::Service => ObjectId::Service(ServiceName::new(namespace, name)),
            Shape::EndpointSlice => ObjectId::Slice(SliceName::new(namespace, name)),
            Shape::Endpoints => ObjectId::Endpoints(ServiceName::new(namespace, name)),
            Shape::Node => ObjectId::Node(interner.get(name)),
            Shape::ServiceCidr => ObjectId::ServiceCidr(interner.get(name)),
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            ObjectId::Service(_) => Kind::Service,
            ObjectId::Slice(_) | ObjectId::Endpoints(_) => Kind::EndpointSlice,
            ObjectId::Node(_) => Kind::Node,
            ObjectId::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }
}

impl From<&ObjectId> for ObjectRef {
    fn from(id: &ObjectId) -> Self {
        let other = |shape: Shape, name: &str| ObjectRef::Other {
            kind: shape.kind(),
            name: bounded::reason(name),
        };
        match id {
            ObjectId::Service(name) => ObjectRef::Service(ServiceName::new(
                &bounded::reason(name.namespace()),
                &bounded::reason(name.name()),
            )),
            ObjectId::Slice(name) => other(Shape::EndpointSlice, &name.to_string()),
            ObjectId::Endpoints(name) => other(Shape::Endpoints, &name.to_string()),
            ObjectId::Node(name) => other(Shape::Node, name),
            ObjectId::ServiceCidr(name) => other(Shape::ServiceCidr, name),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ObjectRef::from(self).fmt(f)
    }
}

/// One changed object, as a source reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub id: ObjectId,
    /// Usually one event; several for an Endpoints object, which becomes several slices, and none for an object
    /// that cannot be read: it stays as it was.
    pub events: Vec<Event>,
    /// All parts of the object that are not served; replaces what was said about the object before.
    pub skipped: Vec<Skipped>,
    /// When the change happened in the cluster (slices only).
    pub trigger: Option<Trigger>,
    /// The object's resourceVersion, where it has one: a number, whose order is that of the changes.
    pub version: Option<u64>,
}

/// When the endpoints of a service changed in the cluster, as far as their object says so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    pub service: ServiceName,
    /// Of the endpoints; `None` for an object that may hold those of both.
    pub family: Option<Family>,
    pub time: SystemTime,
}

impl Change {
    /// What an object means now.
    pub fn of(object: &Object, interner: &Interner) -> Self {
        match object {
            Object::Service(service) => {
                let Converted { fact, skipped } = convert::service(service, interner);
                let name = fact
                    .as_ref()
                    .map_or_else(|| name_of(object), |fact| fact.name.clone());
                let fact = fact.filter(|_| object.is_selected()).map(Arc::new);
                Change::plain(
                    ObjectId::Service(name.clone()),
                    Event::Service(name, fact),
                    skipped,
                )
            }
            Object::EndpointSlice(slice) => {
                let Converted { fact, skipped } = convert::slice(slice, interner);
                let fact = fact.filter(|_| object.is_selected()).map(Arc::new);
                let name = match &fact {
                    Some(fact) => fact.name.clone(),
                    None => SliceName::new(&slice.metadata.namespace, &slice.metadata.name),
                };
                let trigger = fact.as_ref().and_then(|fact| {
                    Some(Trigger {
                        service: fact.service.clone(),
                        family: Some(fact.family),
                        time: convert::trigger_time(&slice.metadata)?,
                    })
                });
                let id = ObjectId::Slice(name.clone());
                Change {
                    trigger,
                    ..Change::plain(id, Event::Slice(name, fact), skipped)
                }
            }
            Object::Endpoints(endpoints) => {
                let Converted {
                    fact: slices,
                    skipped,
                } = convert::endpoints(endpoints, interner);
                let slices = if object.is_selected() { slices } else { Vec::new() };
                let name = name_of(object);
                let trigger = convert::trigger_time(&endpoints.metadata).map(|time| Trigger {
                    service: name.clone(),
                    family: None,
                    time,
                });
                let events = slices.into_iter().map(Event::from).collect();
                Change {
                    id: ObjectId::Endpoints(name),
                    events,
                    skipped,
                    trigger,
                    version: None,
                }
            }
            Object::Node(node) => {
                let Converted { fact, skipped } = convert::node(node, interner);
                let id = ObjectId::Node(interner.get(&node.metadata.name));
                Change::plain(id, Event::Node(Some(Arc::new(fact))), skipped)
            }
            Object::ServiceCidr(cidr) => {
                let Converted { fact, skipped } = convert::service_cidr(cidr);
                let name = interner.get(&cidr.metadata.name);
                let id = ObjectId::ServiceCidr(name.clone());
                Change::plain(id, Event::ServiceCidr(name, Some(fact)), skipped)
            }
        }
    }

    fn plain(id: ObjectId, event: Event, skipped: Vec<Skipped>) -> Self {
        Change {
            id,
            events: vec![event],
            skipped,
            trigger: None,
            version: None,
        }
    }

    /// The same, of an object of this resourceVersion.
    pub fn at_version(mut self, version: &str) -> Self {
        self.version = version.parse().ok();
        self
    }

    /// The same where the object was `parts` facts before: those that are no more must go.
    pub fn replacing(mut self, parts: u16) -> Self {
        if let ObjectId::Endpoints(name) = &self.id {
            let now = self.events.len();
            self.events
                .extend((now..usize::from(parts)).map(|part| no_part(name, part)));
        }
        self
    }

    /// An object is gone, which was `parts` facts before.
    pub fn gone(id: ObjectId, parts: u16) -> Self {
        let events = match &id {
            ObjectId::Service(name) => vec![Event::Service(name.clone(), None)],
            ObjectId::Slice(name) => vec![Event::Slice(name.clone(), None)],
            ObjectId::Endpoints(name) => (0..usize::from(parts)).map(|part| no_part(name, part)).collect(),
            ObjectId::Node(_) => vec![Event::Node(None)],
            ObjectId::ServiceCidr(name) => vec![Event::ServiceCidr(name.clone(), None)],
        };
        Change {
            id,
            events,
            skipped: Vec::new(),
            trigger: None,
            version: None,
        }
    }

    /// An object that cannot be read: what was known about it stays in force.
    pub fn unreadable(id: ObjectId, reason: &str) -> Self {
        let skipped = Skipped {
            object: ObjectRef::from(&id),
            part: None,
            reason: bounded::reason(reason),
        };
        Change {
            id,
            events: Vec::new(),
            skipped: vec![skipped],
            trigger: None,
            version: None,
        }
    }

    /// The object is gone, or nothing of it is served.
    pub fn is_delete(&self) -> bool {
        !self.events.is_empty() && self.served() == 0
    }

    /// How many of the events bring something that is served.
    pub fn served(&self) -> usize {
        let is_served = |event: &&Event| match event {
            Event::Service(_, object) => object.is_some(),
            Event::Slice(_, object) => object.is_some(),
            Event::Node(object) => object.is_some(),
            Event::ServiceCidr(_, object) => object.is_some(),
            Event::Host(_) => true,
        };
        self.events.iter().filter(is_served).count()
    }
}

fn name_of(object: &Object) -> ServiceName {
    let meta = object.meta();
    ServiceName::new(&meta.namespace, &meta.name)
}

fn no_part(name: &ServiceName, part: usize) -> Event {
    Event::Slice(
        convert::endpoints_slice_name(name.namespace(), name.name(), part),
        None,
    )
}
