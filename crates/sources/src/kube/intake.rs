//! What a server says about objects, on its way to the mailbox.

use std::sync::Arc;

use super::frame::{Encoding, MAX_OBJECT, Size, Text};
use super::known::{Content, Known, Met};
use super::protocol::{Bookmark, Line, Status, identity};
use super::resource::Resource;
use crate::assemble::{Change, Mailbox, ObjectId};
use crate::convert::Interner;
use crate::objects::{HeaderMeta, Object, Shape, Unreadable};

pub(super) struct Intake {
    pub(super) resource: Resource,
    mailbox: Arc<Mailbox>,
    interner: Arc<Interner>,
    known: Known,
}

/// How one hears of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is there; whether anything about it is new is to be found out.
    List,
    /// It was just changed.
    Watch,
}

/// A change that is to be told, and what is to be remembered of it.
pub(super) struct News {
    content: Content,
    parts: u16,
    change: Change,
}

impl Intake {
    pub(super) fn new(resource: Resource, mailbox: Arc<Mailbox>, interner: Arc<Interner>) -> Self {
        Intake {
            resource,
            mailbox,
            interner,
            known: Known::default(),
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.known.begin();
    }

    /// Everything that exists has been told: what was not mentioned is gone.
    pub(super) fn end_list(&mut self) {
        let gone = self.known.sweep().into_iter();
        let gone: Vec<Change> = gone.map(|(id, parts)| Change::gone(id, parts)).collect();
        self.mailbox.put_all(gone);
        self.mailbox.listed(self.resource.kind());
    }

    /// What an object says: its version, and what is new about it.
    pub(super) fn read(&mut self, text: Text<'_>, origin: Origin) -> (String, Option<News>) {
        let object = read(self.resource.shape(), text);
        let mut object = match object {
            Ok(object) if self.resource.wants(&object) => object,
            Ok(object) => return (object.meta().resource_version.clone(), None),
            Err(unreadable) => return self.unreadable(unreadable),
        };
        let meta = object.meta_mut();
        let version = std::mem::take(&mut meta.resource_version);
        let id = ObjectId::new(self.resource.shape(), &meta.namespace, &meta.name, &self.interner);
        let content = Content::of(&object);
        let met = self.known.meet(&id, content);
        if matches!((met, origin), (Met::Same(_), Origin::List)) {
            return (version, None);
        }
        let change = Change::of(&object, &self.interner)
            .replacing(met.parts())
            .at_version(&version);
        let news = News {
            content,
            parts: u16::try_from(change.served()).unwrap_or(u16::MAX),
            change,
        };
        (version, Some(news))
    }

    fn unreadable(&mut self, unreadable: Unreadable) -> (String, Option<News>) {
        let HeaderMeta {
            name,
            namespace,
            resource_version: version,
        } = unreadable.identity.unwrap_or_default();
        let id = ObjectId::new(self.resource.shape(), &namespace, &name, &self.interner);
        let content = Content::of(&unreadable.reason);
        let met = self.known.meet(&id, content);
        if matches!(met, Met::Same(_)) {
            return (version, None);
        }
        let news = News {
            content,
            parts: met.parts(),
            change: Change::unreadable(id, &unreadable.reason),
        };
        (version, Some(news))
    }

    pub(super) fn tell(&mut self, news: News) {
        self.known
            .remember(news.change.id.clone(), news.content, news.parts);
        self.mailbox.put(news.change);
    }

    /// An object is gone; given as it last was. Tells the version of its end.
    pub(super) fn absent(&mut self, text: Text<'_>) -> String {
        let HeaderMeta {
            name,
            namespace,
            resource_version,
        } = identity(text).unwrap_or_default();
        let id = ObjectId::new(self.resource.shape(), &namespace, &name, &self.interner);
        if let Some(parts) = self.known.forget(&id) {
            self.mailbox
                .put(Change::gone(id, parts).at_version(&resource_version));
        }
        resource_version
    }
}

fn read(shape: Shape, text: Text<'_>) -> Result<Object, Unreadable> {
    match (text.size, text.encoding) {
        (Size::Whole, Encoding::Json) => Object::from_json(shape, text.bytes),
        (Size::Whole, Encoding::Protobuf) => Object::from_protobuf(shape, text.bytes),
        (Size::Cut, _) => Err(Unreadable {
            identity: identity(text),
            reason: format!(
                "is larger than {} MiB, or nested too deep; it stays as it was",
                MAX_OBJECT >> 20
            ),
        }),
    }
}

/// Whatever an answer holds, it can be asked for everything that a follower may want of it.
pub(super) fn fuzz_text(text: Text<'_>) {
    let object = Line::read(text).map_or(text, |line| line.object);
    let _ = (Bookmark::read(object), Status::read(object), identity(object));
    for shape in Shape::ALL {
        if let Ok(object) = read(shape, object) {
            Change::of(&object, &Interner::default());
        }
    }
}
