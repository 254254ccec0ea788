//! Follows one resource for ever: lists it, watches it, begins again where that stopped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_model::Skipped;
use rand::Rng;
use serde::Deserialize;

use super::Timing;
use super::api::{Answer, Api, Piece, Trouble};
use super::backoff::Backoff;
use super::frame::{Lines, ListReader, excerpt};
use super::health::Health;
use super::known::Known;
use super::protocol::{Bookmark, End, Envelope, Line, can_resume, in_stream_error, refused};
use super::resource::{Page, Resource, Start};
use crate::assemble::{Change, Mailbox, ObjectId};
use crate::convert::Interner;
use crate::objects::{HeaderMeta, Object, Unreadable};

pub(super) struct Follower {
    pub(super) api: Api,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) interner: Arc<Interner>,
    pub(super) timing: Timing,
    pub(super) resource: Resource,
    pub(super) health: Health,
    known: Known,
    backoff: Backoff,
    /// The version up to which everything is known; `None` before a list and after it has expired.
    position: Option<String>,
    streaming: Streaming,
    /// Whether the present attempt has brought something, or has at least stood for a while.
    progress: bool,
}

/// Whether the server is asked for its list as a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streaming {
    Wanted,
    /// Not this time, but again when this time is over.
    Maybe,
    Never,
}

/// A change that is to be told, and what is to be remembered of it.
struct News {
    version: String,
    parts: u16,
    change: Change,
}

impl Follower {
    pub(super) fn new(
        api: Api,
        mailbox: Arc<Mailbox>,
        interner: Arc<Interner>,
        timing: Timing,
        resource: Resource,
    ) -> Self {
        let health = Health::new(mailbox.clone(), resource.name());
        let backoff = Backoff::new(timing.backoff_first, timing.backoff_most);
        Follower {
            api,
            mailbox,
            interner,
            timing,
            resource,
            health,
            known: Known::default(),
            backoff,
            position: None,
            streaming: Streaming::Wanted,
            progress: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.progress = false;
            let end = self.attempt().await.err();
            if self.progress {
                self.backoff.reset();
            }
            let wait = self.judge(end).await;
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&mut self) -> Result<(), End> {
        match self.position.clone() {
            Some(version) => self.watch(Start::After(version)).await,
            None if self.streaming == Streaming::Wanted => self.watch(Start::Everything).await,
            None => self.list().await,
        }
    }

    /// What to do about the end of an attempt; tells how long to wait before the next.
    async fn judge(&mut self, end: Option<End>) -> Duration {
        match end {
            None => Duration::ZERO,
            Some(End::NoStreaming { ever }) => {
                tracing::debug!(
                    resource = self.resource.name(),
                    ever,
                    "the server does not stream lists"
                );
                self.streaming = if ever { Streaming::Maybe } else { Streaming::Never };
                Duration::ZERO
            }
            Some(End::Closed) => {
                self.look_for_slices().await;
                self.wait_if_idle()
            }
            Some(End::Expired) => {
                tracing::debug!(
                    resource = self.resource.name(),
                    "the version has expired, listing anew"
                );
                self.position = None;
                self.wait_if_idle()
            }
            Some(End::Trouble(trouble)) => self.judge_trouble(&trouble),
        }
    }

    /// What works may go on at once; what ends without having brought anything must not become a busy loop.
    fn wait_if_idle(&mut self) -> Duration {
        if self.progress {
            Duration::ZERO
        } else {
            self.backoff.next()
        }
    }

    fn judge_trouble(&mut self, trouble: &Trouble) -> Duration {
        if !can_resume(trouble) {
            self.position = None;
        }
        let Trouble::Status {
            code, retry_after, ..
        } = trouble
        else {
            self.health.failing(trouble);
            return self.backoff.next();
        };
        if *code == 404 && self.resource == Resource::EndpointSlices {
            if self.health.is_well() {
                tracing::warn!("the cluster serves no EndpointSlices, following Endpoints");
            }
            self.turn_to(Resource::Endpoints);
            return self.backoff.next();
        }
        if *code == 404 && self.resource == Resource::Endpoints {
            self.turn_to(Resource::EndpointSlices);
        }
        self.health.failing(trouble);
        if self.resource == Resource::ServiceCidrs {
            // Older clusters have none, or do not let us see them. They are no reason to hold services back.
            self.mailbox.listed(self.resource.kind());
            if matches!(code, 403 | 404) {
                return self.timing.missing;
            }
        }
        self.backoff
            .next()
            .max(retry_after.unwrap_or_default().min(self.timing.backoff_most * 2))
    }

    fn turn_to(&mut self, resource: Resource) {
        self.resource = resource;
        self.position = None;
    }

    /// A cluster that is upgraded, or whose front door said 404 by mistake, has EndpointSlices later on.
    async fn look_for_slices(&mut self) {
        if self.resource != Resource::Endpoints {
            return;
        }
        let probe = Resource::EndpointSlices.list(&Page::First);
        if self.api.get(&probe, self.timing.answer).await.is_ok() {
            tracing::info!("the cluster serves EndpointSlices now");
            self.turn_to(Resource::EndpointSlices);
        }
    }

    async fn list(&mut self) -> Result<(), End> {
        let mut page = Page::First;
        self.known.begin();
        loop {
            let envelope = match self.page(&page).await {
                Ok(envelope) => envelope,
                Err(Trouble::Status { code: 410, .. }) if page != Page::Whole => {
                    tracing::debug!(
                        resource = self.resource.name(),
                        "the list expired between two pages"
                    );
                    self.known.begin();
                    page = Page::Whole;
                    continue;
                }
                Err(trouble) => return Err(trouble.into()),
            };
            match envelope.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) if page == Page::Next(token.clone()) => {
                    let url = self.resource.list(&page);
                    let reason = "one page after another is the same".into();
                    return Err(Trouble::Garbage { url, reason }.into());
                }
                Some(token) => page = Page::Next(token),
                None => {
                    self.listed(envelope.metadata.resource_version);
                    return Ok(());
                }
            }
        }
    }

    async fn page(&mut self, page: &Page) -> Result<Envelope, Trouble> {
        let mut answer = self
            .api
            .get(&self.resource.list(page), self.timing.answer)
            .await?;
        let mut reader = ListReader::default();
        let mut news = Vec::new();
        loop {
            match answer.piece(self.timing.answer).await? {
                Piece::Data(data) => reader
                    .push(&data, |item| news.extend(self.read(item).1))
                    .map_err(|error| answer.garbage(error))?,
                Piece::End => break,
                Piece::Silence => {
                    return Err(Trouble::Slow {
                        url: answer.url,
                        within: self.timing.answer,
                    });
                }
            }
        }
        let envelope = reader.finish().map_err(|error| answer.garbage(error))?;
        let envelope: Envelope = serde_json::from_slice(&envelope).map_err(|error| answer.garbage(error))?;
        // What a list says is believed, and what it does not mention is taken as gone: it must be a list beyond doubt.
        let kind = self.resource.shape().kind();
        if envelope.kind.strip_suffix("List") != Some(kind) {
            return Err(answer.garbage(format!("it is a {:?}, not a list of kind {kind}", envelope.kind)));
        }
        if envelope.metadata.resource_version.is_empty() {
            return Err(answer.garbage("the list has no resourceVersion"));
        }
        news.into_iter().for_each(|news| self.tell(news));
        Ok(envelope)
    }

    /// Everything that exists is known: what was not mentioned is gone.
    fn listed(&mut self, version: String) {
        let gone = self
            .known
            .sweep()
            .into_iter()
            .map(|(id, parts)| Change::gone(id, parts));
        self.mailbox.put_all(gone.collect::<Vec<_>>());
        self.mailbox.listed(self.resource.kind());
        self.position = Some(version);
        self.progress = true;
        self.health.well();
        if self.streaming == Streaming::Maybe {
            self.streaming = Streaming::Wanted;
        }
    }

    async fn watch(&mut self, start: Start) -> Result<(), End> {
        let seconds = rand::rng().random_range(self.timing.watch.clone());
        let uri = self.resource.watch(&start, seconds);
        let mut listing = start == Start::Everything;
        let mut answer = match self.api.get(&uri, self.timing.answer).await {
            Ok(answer) => answer,
            Err(trouble) => return Err(refused(trouble, listing)),
        };
        if listing {
            self.known.begin();
        }
        let mut lines = Lines::default();
        let opened = Instant::now();
        loop {
            // A watch works when it has said something, or has kept quiet for a moment instead of ending at once.
            let settling = !listing && !self.health.is_well();
            let allowed = match (listing, settling) {
                (true, _) => self.timing.answer,
                (false, true) => self.timing.settle,
                (false, false) => self.timing.silence,
            };
            let piece = answer.piece(allowed).await;
            self.progress |= !listing && opened.elapsed() >= self.timing.settle;
            match piece {
                Ok(Piece::Data(data)) => lines.push(&data),
                Ok(Piece::Silence) if settling => self.health.well(),
                // A server that ignores the wish for initial events never says that they have ended.
                Ok(Piece::Silence) if listing => return Err(End::NoStreaming { ever: false }),
                Ok(Piece::Silence) => return Err(End::Closed),
                Ok(Piece::End) => {
                    if let Some(line) = lines.rest() {
                        self.line(&line, &mut listing, &answer)?;
                    }
                    return Err(match listing {
                        true => answer.garbage("it ended before the list was complete").into(),
                        false => End::Closed,
                    });
                }
                Err(trouble) if listing => return Err(trouble.into()),
                Err(_) => return Err(End::Closed),
            }
            while let Some(line) = lines.next().map_err(|error| answer.garbage(error))? {
                self.line(&line, &mut listing, &answer)?;
            }
        }
    }

    fn line(&mut self, line: &[u8], listing: &mut bool, answer: &Answer) -> Result<(), End> {
        let line: Line<'_> = serde_json::from_slice(line)
            .map_err(|error| answer.garbage(format!("{error}, in \"{}\"", excerpt(line))))?;
        let json = line.object.get().as_bytes();
        let version = match line.kind {
            "ADDED" | "MODIFIED" => self.present(json),
            "DELETED" => self.absent(json),
            "BOOKMARK" => {
                let bookmark: Bookmark =
                    serde_json::from_slice(json).map_err(|error| answer.garbage(error))?;
                let annotations = bookmark.metadata.annotations.unwrap_or_default();
                let version = bookmark.metadata.resource_version;
                if *listing
                    && annotations.initial_events_end.as_deref() == Some("true")
                    && !version.is_empty()
                {
                    *listing = false;
                    self.listed(version.clone());
                }
                version
            }
            "ERROR" => return Err(refused(in_stream_error(json, answer), *listing)),
            other => {
                tracing::debug!(
                    resource = self.resource.name(),
                    kind = other,
                    "unknown watch event"
                );
                return Ok(());
            }
        };
        // While the list is streamed, only its end makes a version that one can go on from.
        if !*listing && !version.is_empty() {
            self.position = Some(version);
            self.progress = true;
            self.health.well();
        }
        Ok(())
    }

    /// An object exists, as given. Tells its version.
    fn present(&mut self, json: &[u8]) -> String {
        let (version, news) = self.read(json);
        if let Some(news) = news {
            self.tell(news);
        }
        version
    }

    /// What an object says: its version, and what is new about it.
    fn read(&mut self, json: &[u8]) -> (String, Option<News>) {
        let object = match Object::from_json(self.resource.shape(), json) {
            Ok(object) if self.resource.wants(&object) => object,
            Ok(object) => return (object.meta().resource_version.clone(), None),
            Err(unreadable) => return self.unreadable(unreadable),
        };
        let meta = object.meta();
        let id = ObjectId::new(self.resource.shape(), &meta.namespace, &meta.name, &self.interner);
        let version = meta.resource_version.clone();
        let news = self.known.meet(&id, &version).map(|parts| {
            let change = Change::of(&object, &self.interner).replacing(parts);
            let parts = u16::try_from(change.served()).unwrap_or(u16::MAX);
            News {
                version: version.clone(),
                parts,
                change,
            }
        });
        (version, news)
    }

    fn unreadable(&mut self, unreadable: Unreadable) -> (String, Option<News>) {
        let HeaderMeta {
            name,
            namespace,
            resource_version: version,
        } = unreadable.identity.unwrap_or_default();
        let id = ObjectId::new(self.resource.shape(), &namespace, &name, &self.interner);
        let news = self.known.meet(&id, &version).map(|parts| {
            let skipped = vec![Skipped {
                object: id.to_string(),
                reason: unreadable.reason,
            }];
            News {
                version: version.clone(),
                parts,
                change: Change::unreadable(id, skipped),
            }
        });
        (version, news)
    }

    fn tell(
        &mut self,
        News {
            version,
            parts,
            change,
        }: News,
    ) {
        self.known.remember(change.id.clone(), &version, parts);
        self.mailbox.put(change);
    }

    /// An object is gone; given as it last was. Tells the version of its end.
    fn absent(&mut self, json: &[u8]) -> String {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            metadata: HeaderMeta,
        }
        let Named { metadata } = serde_json::from_slice(json).unwrap_or_default();
        let id = ObjectId::new(
            self.resource.shape(),
            &metadata.namespace,
            &metadata.name,
            &self.interner,
        );
        if let Some(parts) = self.known.forget(&id) {
            self.mailbox.put(Change::gone(id, parts));
        }
        metadata.resource_version
    }
}
