//! What a mailbox holds, without the locking.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use ferry_model::{Event, Node, ServiceName, Skipped, SliceName};

use super::change::{Change, ObjectId, Trigger};

/// An object that changes without end while no sync succeeds must not fill the memory with its trigger times.
const TRIGGERS_PER_OBJECT: usize = 100;

/// The kinds of objects that a source follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Service,
    /// EndpointSlices, and Endpoints where a cluster serves no slices.
    EndpointSlice,
    Node,
    ServiceCidr,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
        }
    }
}

/// What changed since the mailbox was last emptied.
#[derive(Debug, Default)]
pub struct Mail {
    /// The latest state of each changed object, services first. The order carries no meaning otherwise.
    pub events: Vec<Event>,
    /// What is newly skipped, for the log and for events; [`super::Mailbox::skipped`] tells everything.
    pub skipped: Vec<Skipped>,
    /// When the changes happened that the next sync will bring into force.
    pub triggers: Vec<Trigger>,
    /// The objects that changed; none in the first mail, which holds everything.
    pub objects: Vec<ChangedObject>,
    /// This is the first mail: every kind has been listed, and it holds everything.
    pub first: bool,
}

/// An object that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedObject {
    pub id: ObjectId,
    /// Its resourceVersion, the latest of those since the last mail.
    pub version: Option<u64>,
    /// It is gone, or nothing of it is served any more.
    pub gone: bool,
}

impl Mail {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.skipped.is_empty() && !self.first
    }
}

/// Changes seen since the start, and those that no sync has picked up yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub service_changes: u64,
    pub service_changes_pending: u64,
    pub endpoint_changes: u64,
    pub endpoint_changes_pending: u64,
}

/// What is known about our own Node, whether or not the other kinds have been listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The source has asked for the Node at least once and got an answer.
    pub listed: bool,
    /// As last seen; a deleted Node stays as it was.
    pub node: Option<Arc<Node>>,
}

/// A source, or a part of one, that does not work at present. What it brought before stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A resource of the API server, or a file.
    pub about: String,
    pub reason: String,
    pub since: SystemTime,
}

/// What makes two events about the same object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Service(ServiceName),
    Slice(SliceName),
    Node,
    ServiceCidr(Arc<str>),
    Host,
}

impl Key {
    fn of(event: &Event) -> Self {
        match event {
            Event::Service(name, _) => Key::Service(name.clone()),
            Event::Slice(name, _) => Key::Slice(name.clone()),
            Event::Node(_) => Key::Node,
            Event::ServiceCidr(name, _) => Key::ServiceCidr(name.clone()),
            Event::Host(_) => Key::Host,
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    missing: BTreeSet<Kind>,
    opened: bool,
    /// Triggers before this moment tell about a change that another process has missed, not us.
    started: SystemTime,
    pending: HashMap<Key, Event>,
    triggers: HashMap<ObjectId, Vec<Trigger>>,
    /// The objects behind what is pending, from the second mail on.
    objects: HashMap<ObjectId, ChangedObject>,
    skipped: BTreeMap<ObjectId, Vec<Skipped>>,
    newly_skipped: BTreeSet<Skipped>,
    counts: Counts,
    node: NodeState,
    problems: BTreeMap<String, Problem>,
    woken: bool,
}

impl State {
    pub(super) fn new(expected: &[Kind], started: SystemTime) -> Self {
        State {
            missing: expected.iter().copied().collect(),
            opened: false,
            started,
            pending: HashMap::new(),
            triggers: HashMap::new(),
            objects: HashMap::new(),
            skipped: BTreeMap::new(),
            newly_skipped: BTreeSet::new(),
            counts: Counts::default(),
            node: NodeState::default(),
            problems: BTreeMap::new(),
            woken: false,
        }
    }

    pub(super) fn put(&mut self, change: Change) {
        self.note_trigger(&change);
        if self.opened && !change.events.is_empty() {
            let (id, version, gone) = (change.id.clone(), change.version, change.is_delete());
            let object = ChangedObject { id, version, gone };
            self.objects.insert(change.id.clone(), object);
        }
        self.note_skipped(change.id, change.skipped);
        for event in change.events {
            self.put_event(event);
        }
    }

    fn put_event(&mut self, event: Event) {
        let key = Key::of(&event);
        let fresh = u64::from(!self.pending.contains_key(&key));
        match &event {
            Event::Service(..) => {
                self.counts.service_changes += 1;
                self.counts.service_changes_pending += fresh;
            }
            Event::Slice(..) => {
                self.counts.endpoint_changes += 1;
                self.counts.endpoint_changes_pending += fresh;
            }
            Event::Node(Some(node)) => self.node.node = Some(node.clone()),
            Event::Node(None) | Event::ServiceCidr(..) | Event::Host(_) => {}
        }
        self.pending.insert(key, event);
    }

    /// A change that is to come into force has its time noted; where the object went away, nobody waits any more.
    fn note_trigger(&mut self, change: &Change) {
        if change.is_delete() {
            self.triggers.remove(&change.id);
        }
        let Some(trigger) = change
            .trigger
            .as_ref()
            .filter(|trigger| trigger.time > self.started)
        else {
            return;
        };
        let triggers = self.triggers.entry(change.id.clone()).or_default();
        if triggers.len() < TRIGGERS_PER_OBJECT {
            triggers.push(trigger.clone());
        }
    }

    fn note_skipped(&mut self, id: ObjectId, skipped: Vec<Skipped>) {
        let before = self.skipped.get(&id).map_or(&[][..], Vec::as_slice);
        if before == skipped {
            return;
        }
        self.newly_skipped
            .retain(|known| !before.contains(known) || skipped.contains(known));
        self.newly_skipped
            .extend(skipped.iter().filter(|new| !before.contains(new)).cloned());
        if skipped.is_empty() {
            self.skipped.remove(&id);
        } else {
            self.skipped.insert(id, skipped);
        }
    }

    pub(super) fn listed(&mut self, kind: Kind) {
        self.missing.remove(&kind);
        if kind == Kind::Node {
            self.node.listed = true;
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.missing.is_empty()
    }

    pub(super) fn missing(&self) -> Vec<Kind> {
        self.missing.iter().copied().collect()
    }

    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// Whether someone called, once.
    pub(super) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Whether a waiting loop has a reason to go on.
    pub(super) fn has_news(&mut self) -> bool {
        self.take_wake()
            || self.is_open() && (!self.opened || !self.pending.is_empty() || !self.newly_skipped.is_empty())
    }

    pub(super) fn take(&mut self) -> Mail {
        if !self.is_open() {
            return Mail::default();
        }
        self.counts.service_changes_pending = 0;
        self.counts.endpoint_changes_pending = 0;
        let mut events: Vec<Event> = std::mem::take(&mut self.pending).into_values().collect();
        events.sort_by_key(|event| !matches!(event, Event::Service(..)));
        Mail {
            events,
            skipped: std::mem::take(&mut self.newly_skipped).into_iter().collect(),
            triggers: self.take_triggers(),
            objects: std::mem::take(&mut self.objects).into_values().collect(),
            first: !std::mem::replace(&mut self.opened, true),
        }
    }

    fn take_triggers(&mut self) -> Vec<Trigger> {
        let mut triggers: Vec<Trigger> = std::mem::take(&mut self.triggers)
            .into_values()
            .flatten()
            .collect();
        triggers.sort();
        triggers
    }

    pub(super) fn skipped(&self) -> Vec<Skipped> {
        self.skipped.values().flatten().cloned().collect()
    }

    pub(super) fn skipped_count(&self) -> usize {
        self.skipped.values().map(Vec::len).sum()
    }

    pub(super) fn set_problem(&mut self, about: &str, reason: Option<String>) {
        let Some(reason) = reason else {
            self.problems.remove(about);
            return;
        };
        let since = self
            .problems
            .get(about)
            .map_or_else(SystemTime::now, |known| known.since);
        self.problems.insert(
            about.to_owned(),
            Problem {
                about: about.to_owned(),
                reason,
                since,
            },
        );
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.values().cloned().collect()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn node(&self) -> NodeState {
        self.node.clone()
    }
}
