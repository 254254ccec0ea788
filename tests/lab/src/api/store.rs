//! Objects, their history, and who watches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::kinds::{self, Kind};
use super::{Faults, protobuf};

/// Changes that a watch can still be resumed from; the real server also forgets.
const HISTORY: usize = 100_000;
/// Lists that a `continue` token can still name.
const PAGED_LISTS: usize = 8;

/// An object as it stood at some version, with its text ready to send.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) value: Value,
    pub(super) json: Bytes,
    /// Unless there is no such form of it.
    pub(super) protobuf: Option<Bytes>,
}

impl Object {
    fn new(value: Value) -> Arc<Object> {
        let json = Bytes::from(value.to_string());
        let protobuf = protobuf::encode(&value).ok().map(Bytes::from);
        Arc::new(Object {
            value,
            json,
            protobuf,
        })
    }

    /// The same content under another version: a deleted object carries that of its deletion.
    pub(super) fn at_version(&self, version: u64) -> Arc<Object> {
        let mut value = self.value.clone();
        value["metadata"]["resourceVersion"] = version.to_string().into();
        Object::new(value)
    }

    pub(super) fn namespace(&self) -> &str {
        self.value["metadata"]["namespace"].as_str().unwrap_or_default()
    }
}

/// One change: what stood before, what stands now.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: &'static Kind,
    pub(super) old: Option<Arc<Object>>,
    pub(super) new: Option<Arc<Object>>,
}

/// What watches wait for: each number only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tick {
    pub(super) version: u64,
    pub(super) cuts: u64,
    pub(super) expiries: u64,
    pub(super) bookmarks: u64,
}

/// A request that a client made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Seen {
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    pub user_agent: String,
    pub accept: String,
}

/// A list that a client reads in pages, as it stood when the first was read.
#[derive(Debug)]
struct PagedList {
    number: u64,
    version: u64,
    objects: Vec<Arc<Object>>,
}

type Key = (&'static Kind, String, String);

#[derive(Debug)]
struct State {
    version: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    history: VecDeque<Change>,
    /// Watches from before this version are refused.
    floor: u64,
    paged: VecDeque<PagedList>,
    /// How many lists were given out in pages.
    lists: u64,
    events: Vec<Value>,
    requests: Vec<Seen>,
    faults: Faults,
    started: Instant,
}

#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    tick: watch::Sender<Tick>,
    watchers: Arc<()>,
}

impl Default for Store {
    fn default() -> Self {
        let version = 100;
        let state = State {
            version,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            floor: 0,
            paged: VecDeque::new(),
            lists: 0,
            events: Vec::new(),
            requests: Vec::new(),
            faults: Faults::default(),
            started: Instant::now(),
        };
        let tick = watch::Sender::new(Tick {
            version,
            ..Tick::default()
        });
        Store {
            state: Mutex::new(state),
            tick,
            watchers: Arc::default(),
        }
    }
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces, filling in what a server fills in. Gives the object as it stands now.
    pub(super) fn apply(&self, mut object: Value) -> Result<Arc<Object>> {
        let (kind, namespace, name) = key(&object)?;
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let old = state
            .objects
            .get(&(kind, namespace.clone(), name.clone()))
            .cloned();
        let Some(metadata) = object["metadata"].as_object_mut() else {
            bail!("{name}: no metadata")
        };
        if kind.namespaced {
            metadata.insert("namespace".into(), namespace.clone().into());
        }
        let mut default = |field: &str, value: String| {
            metadata.entry(field).or_insert_with(|| value.into());
        };
        default("uid", format!("{}-{namespace}-{name}", kind.plural));
        default("creationTimestamp", "2026-01-01T00:00:00Z".into());
        metadata.insert("resourceVersion".into(), version.to_string().into());
        let object = Object::new(object);
        state.objects.insert((kind, namespace, name), Arc::clone(&object));
        self.record(
            &mut state,
            Change {
                version,
                kind,
                old,
                new: Some(Arc::clone(&object)),
            },
        );
        Ok(object)
    }

    pub(super) fn delete(&self, object: &Value) -> Result<()> {
        let key = key(object)?;
        let mut state = self.state();
        if let Some(old) = state.objects.remove(&key) {
            state.version += 1;
            let version = state.version;
            self.record(
                &mut state,
                Change {
                    version,
                    kind: key.0,
                    old: Some(old),
                    new: None,
                },
            );
        }
        Ok(())
    }

    fn record(&self, state: &mut State, change: Change) {
        if state.history.len() == HISTORY {
            state.floor = state.history.pop_front().map_or(state.floor, |c| c.version);
        }
        let version = change.version;
        state.history.push_back(change);
        self.tick.send_modify(|t| t.version = version);
    }

    pub(super) fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.state()
            .objects
            .get(&(kind, namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// All objects of a kind in the order of the real server, with the version they stand at.
    pub(super) fn list(&self, kind: &'static Kind) -> (u64, Vec<Arc<Object>>) {
        let state = self.state();
        let from = (kind, String::new(), String::new());
        let objects = state
            .objects
            .range(from..)
            .take_while(|(k, _)| k.0 == kind)
            .map(|(_, o)| Arc::clone(o));
        (state.version, objects.collect())
    }

    /// Whether every object of the kind has its form in protobuf.
    pub(super) fn has_protobuf(&self, kind: &'static Kind) -> bool {
        let (_, objects) = self.list(kind);
        protobuf::knows(kind) && objects.iter().all(|object| object.protobuf.is_some())
    }

    /// Keeps a list for later pages of it, under a number that is the list's own.
    pub(super) fn keep_pages(&self, version: u64, objects: Vec<Arc<Object>>) -> u64 {
        let mut state = self.state();
        if state.paged.len() == PAGED_LISTS {
            state.paged.pop_front();
        }
        let number = state.lists;
        state.lists += 1;
        state.paged.push_back(PagedList {
            number,
            version,
            objects,
        });
        number
    }

    pub(super) fn pages(&self, number: u64) -> Option<(u64, Vec<Arc<Object>>)> {
        let state = self.state();
        let kept = state.paged.iter().find(|list| list.number == number)?;
        Some((kept.version, kept.objects.clone()))
    }

    /// Changes after a version, or `None` if history does not go back so far.
    pub(super) fn since(&self, version: u64) -> Option<Vec<Change>> {
        let state = self.state();
        if version < state.floor {
            return None;
        }
        let start = state.history.partition_point(|c| c.version <= version);
        Some(state.history.range(start..).cloned().collect())
    }

    /// Ticks from now on; holding the guard counts as one open watch.
    pub(super) fn watch(&self) -> (watch::Receiver<Tick>, Arc<()>) {
        (self.tick.subscribe(), Arc::clone(&self.watchers))
    }

    pub(super) fn open_watches(&self) -> usize {
        Arc::strong_count(&self.watchers) - 1
    }

    pub(super) fn cut(&self) {
        self.tick.send_modify(|t| t.cuts += 1);
    }

    pub(super) fn expire(&self) {
        let mut state = self.state();
        state.version += 1000;
        state.floor = state.version;
        state.history.clear();
        state.paged.clear();
        let version = state.version;
        self.tick.send_modify(|t| {
            t.version = version;
            t.expiries += 1;
        });
    }

    /// As after etcd was restored from a backup: the version is an older one, and what happened since never did.
    pub(super) fn rewind(&self, version: u64) {
        let mut state = self.state();
        state.version = version;
        state.floor = 0;
        state.history.clear();
        state.paged.clear();
        self.tick.send_modify(|t| {
            t.version = version;
            t.cuts += 1;
        });
    }

    pub(super) fn version(&self) -> u64 {
        self.state().version
    }

    pub(super) fn bookmark(&self) {
        self.tick.send_modify(|t| t.bookmarks += 1);
    }

    pub(super) fn faults(&self) -> Faults {
        self.state().faults.clone()
    }

    /// The code that this one request for a kind is to be answered with.
    pub(super) fn take_refusal(&self, kind: &Kind) -> Option<u16> {
        let mut state = self.state();
        let codes = state.faults.once.get_mut(kind.plural)?;
        (!codes.is_empty()).then(|| codes.remove(0))
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Keeps an event: a new one at the end, one of the same name in its place.
    pub(super) fn write_event(&self, event: Value) {
        let mut state = self.state();
        let name = event["metadata"]["name"].clone();
        match state
            .events
            .iter_mut()
            .find(|e| name.is_string() && e["metadata"]["name"] == name)
        {
            Some(old) => merge(old, &event),
            None => state.events.push(event),
        }
    }

    pub(super) fn events(&self) -> Vec<Value> {
        self.state().events.clone()
    }

    pub(super) fn saw(&self, seen: Seen) {
        self.state().requests.push(seen);
    }

    pub(super) fn requests(&self) -> Vec<Seen> {
        self.state().requests.clone()
    }

    pub(super) fn age(&self) -> std::time::Duration {
        self.state().started.elapsed()
    }
}

fn key(object: &Value) -> Result<Key> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let name = text(&object["metadata"]["name"]).context("an object without metadata.name")?;
    let kind = text(&object["kind"]).with_context(|| format!("{name}: an object without kind"))?;
    let version = text(&object["apiVersion"]).with_context(|| format!("{kind} {name}: no apiVersion"))?;
    let found = kinds::of_object(&version, &kind);
    let found = found.with_context(|| format!("{name}: the lab's server knows no {version} {kind}"))?;
    let namespace = text(&object["metadata"]["namespace"]).unwrap_or_else(|| "default".into());
    Ok((
        found,
        if found.namespaced {
            namespace
        } else {
            String::new()
        },
        name,
    ))
}

/// A JSON merge patch.
pub(super) fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(serde_json::Map::new());
    }
    for (name, value) in fields {
        if value.is_null() {
            if let Some(object) = into.as_object_mut() {
                object.remove(name);
            }
        } else {
            merge(&mut into[name], value);
        }
    }
}
