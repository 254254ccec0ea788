//! One watch: the state it starts from, then every change, until someone ends it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::kinds::Kind;
use super::query::Query;
use super::selector::Selector;
use super::store::{Change, Object, Store, Tick};
use super::{Faults, protobuf};

const BOOKMARK_EVERY: Duration = Duration::from_secs(30);

type Ticks = tokio::sync::watch::Receiver<Tick>;

/// What a client asked to watch.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) kind: &'static Kind,
    pub(super) namespace: Option<String>,
    pub(super) selector: Selector,
    /// 0: begin with what stands now.
    pub(super) from: u64,
    pub(super) initial: bool,
    pub(super) bookmarks: bool,
    pub(super) limit: Option<Duration>,
    pub(super) cut_after: Option<u64>,
    pub(super) silent: bool,
    pub(super) encoding: Encoding,
}

/// How a watch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

impl Watch {
    pub(super) fn new(
        kind: &'static Kind,
        namespace: Option<&str>,
        selector: Selector,
        query: &Query,
        faults: &Faults,
        encoding: Encoding,
    ) -> Watch {
        Watch {
            kind,
            namespace: namespace.map(str::to_owned),
            selector,
            from: query.number("resourceVersion").unwrap_or(0),
            initial: query.is_set("sendInitialEvents"),
            bookmarks: query.is_set("allowWatchBookmarks"),
            limit: query.number("timeoutSeconds").map(Duration::from_secs),
            cut_after: faults.cut_after,
            silent: faults.silent.contains(kind.plural),
            encoding,
        }
    }

    fn covers(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|ns| ns == object.namespace())
            && self.selector.selects(&object.value)
    }

    /// Sends until the client goes, the time is up, or the server cuts it off.
    pub(super) async fn run(self, store: Arc<Store>, to: mpsc::Sender<Bytes>) {
        // ticks before state: a change between the two is seen twice as a tick, never missed
        let (mut ticks, _open) = store.watch();
        let first = *ticks.borrow_and_update();
        if self.silent {
            tokio::select! {
                _ = ticks.wait_for(|tick| tick.cuts != first.cuts) => {}
                () = to.closed() => {}
            }
            return;
        }
        let mut out = Sender {
            to,
            sent: 0,
            limit: self.cut_after,
            kind: self.kind,
            encoding: self.encoding,
        };
        let mut version = self.from;
        if self.initial || version == 0 {
            let (now, objects) = store.list(self.kind);
            version = now;
            for object in objects.iter().filter(|o| self.covers(o)) {
                if out.object("ADDED", object).await.is_none() {
                    return;
                }
            }
            if self.initial && out.bookmark(version, true).await.is_none() {
                return;
            }
        }
        let _ = self.follow(&store, &mut ticks, first, version, &mut out).await;
    }

    async fn follow(
        &self,
        store: &Store,
        ticks: &mut Ticks,
        first: Tick,
        mut version: u64,
        out: &mut Sender,
    ) -> Option<()> {
        let end = Instant::now() + self.limit.unwrap_or(Duration::from_secs(86_400));
        let mut bookmarks = first.bookmarks;
        let mut next_bookmark = Instant::now() + BOOKMARK_EVERY;
        loop {
            let tick = *ticks.borrow_and_update();
            if tick.cuts != first.cuts {
                return None;
            }
            let changes = store.since(version).filter(|_| tick.expiries == first.expiries);
            let Some(changes) = changes else {
                return out.value("ERROR", &gone()).await;
            };
            for change in &changes {
                self.forward(change, out).await?;
                version = change.version;
            }
            // history is written before the tick, so everything up to the tick's version has been sent
            version = version.max(tick.version);
            if tick.bookmarks != bookmarks || Instant::now() >= next_bookmark {
                bookmarks = tick.bookmarks;
                next_bookmark = Instant::now() + BOOKMARK_EVERY;
                // a version that the server has not reached is no progress to speak of
                if self.bookmarks && version <= tick.version {
                    out.bookmark(version, false).await?;
                }
            }
            tokio::select! {
                changed = ticks.changed() => changed.ok()?,
                () = tokio::time::sleep_until(next_bookmark) => {}
                () = tokio::time::sleep_until(end) => return None,
                () = out.to.closed() => return None,
            }
        }
    }

    /// The change as this watch sees it: an object can come into and go out of its selector.
    async fn forward(&self, change: &Change, out: &mut Sender) -> Option<()> {
        if change.kind != self.kind {
            return Some(());
        }
        let before = change.old.as_ref().filter(|o| self.covers(o));
        let now = change.new.as_ref().filter(|o| self.covers(o));
        match (before, now) {
            (None, None) => Some(()),
            (None, Some(new)) => out.object("ADDED", new).await,
            (Some(_), Some(new)) => out.object("MODIFIED", new).await,
            (Some(old), None) => out.object("DELETED", &old.at_version(change.version)).await,
        }
    }
}

struct Sender {
    to: mpsc::Sender<Bytes>,
    sent: u64,
    limit: Option<u64>,
    kind: &'static Kind,
    encoding: Encoding,
}

impl Sender {
    /// `None`: the watch is over, as for an object that cannot be written as was agreed.
    async fn object(&mut self, what: &str, object: &Object) -> Option<()> {
        let frame = match self.encoding {
            Encoding::Json => json_event(what, &object.json),
            Encoding::Protobuf => {
                let (api_version, bytes) = (self.kind.api_version(), object.protobuf.as_ref()?);
                protobuf::event(what, &protobuf::wrap(&api_version, self.kind.kind, bytes))
            }
        };
        self.send(frame).await
    }

    async fn value(&mut self, what: &str, object: &Value) -> Option<()> {
        self.send(value_event(what, object, self.encoding)?).await
    }

    async fn send(&mut self, frame: Bytes) -> Option<()> {
        if self.limit.is_some_and(|limit| self.sent >= limit) {
            return None;
        }
        self.sent += 1;
        self.to.send(frame).await.ok()
    }

    async fn bookmark(&mut self, version: u64, initial: bool) -> Option<()> {
        let mut object = json!({
            "kind": self.kind.kind, "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        });
        if initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        self.value("BOOKMARK", &object).await
    }
}

fn json_event(what: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 40);
    line.extend_from_slice(format!(r#"{{"type":"{what}","object":"#).as_bytes());
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// An event with an object that is not in the store.
pub(super) fn value_event(what: &str, object: &Value, encoding: Encoding) -> Option<Bytes> {
    if encoding == Encoding::Json {
        return Some(json_event(what, object.to_string().as_bytes()));
    }
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let bytes = protobuf::encode(object).ok()?;
    Some(protobuf::event(
        what,
        &protobuf::wrap(text("apiVersion"), text("kind"), &bytes),
    ))
}

fn gone() -> Value {
    super::http::status(
        410,
        "Expired",
        "The resourceVersion for the provided watch is too old.",
    )
}
