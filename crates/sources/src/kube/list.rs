//! Lists, read while they arrive: an object at a time is held, never the whole answer.

use tokio::time::Instant;

use super::api::{Piece, Trouble};
use super::follow::Follower;
use super::frame::ListReader;
use super::intake::Origin;
use super::protocol::{End, Envelope, ListMeta, was_rewound};
use super::resource::{List, Resource};

/// What is done with the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    Told,
    Ignored,
}

impl Follower {
    pub(super) async fn list(&mut self) -> Result<(), End> {
        let started = Instant::now();
        let mut list = self.list.clone();
        self.intake.begin_list();
        loop {
            let meta = self.read_list(&list, Items::Told).await?;
            match meta.next.filter(|token| !token.is_empty()) {
                Some(token) if list == List::Rest(token.clone()) => {
                    let url = self.intake.resource.list(&list);
                    let reason = "one page after another is the same".into();
                    return Err(Trouble::Garbage { url, reason }.into());
                }
                Some(token) => list = List::Rest(token),
                None => {
                    self.list_time = started.elapsed();
                    self.listed(meta.resource_version);
                    return Ok(());
                }
            }
        }
    }

    /// Asks which version the server is at: not before ours, if all is well.
    pub(super) async fn check_history(&mut self) -> Result<(), End> {
        let meta = self.read_list(&List::One, Items::Ignored).await?;
        let position = self.position.as_deref().unwrap_or_default();
        if was_rewound(position, &meta.resource_version) {
            return Err(End::Doubted("the server is at an older version than before"));
        }
        Ok(())
    }

    async fn read_list(&mut self, list: &List, items: Items) -> Result<ListMeta, Trouble> {
        let uri = self.intake.resource.list(list);
        let mut answer = self.get(&uri).await?;
        let mut reader = ListReader::new(answer.encoding);
        let mut held = Vec::new();
        let mut is_believed = None;
        loop {
            let data = match answer.piece(self.timing.answer).await? {
                Piece::Data(data) => data,
                Piece::End => break,
                Piece::Silence => {
                    return Err(Trouble::Slow {
                        url: answer.url,
                        within: self.timing.answer,
                    });
                }
            };
            let mut input = &data[..];
            while let Some(item) = reader.next(&mut input).map_err(|error| answer.garbage(error))? {
                if items == Items::Ignored {
                    continue;
                }
                let (_, news) = self.intake.read(item, Origin::List);
                let is_list = || list_meta(reader.envelope_so_far(), &self.intake.resource).is_ok();
                if *is_believed.get_or_insert_with(is_list) {
                    news.into_iter().for_each(|news| self.intake.tell(news));
                } else {
                    held.extend(news);
                }
            }
        }
        let meta = list_meta(reader.finish(), &self.intake.resource);
        let meta = meta.map_err(|reason| answer.garbage(reason))?;
        held.into_iter().for_each(|news| self.intake.tell(news));
        Ok(meta)
    }
}

/// What a list says is believed, and what it does not mention is taken as gone: it must be a list beyond doubt.
fn list_meta(envelope: Result<Envelope, String>, resource: &Resource) -> Result<ListMeta, String> {
    let Envelope { kind, metadata } = envelope?;
    let expected = resource.shape().kind();
    if kind.strip_suffix("List") != Some(expected) {
        return Err(format!("it is a {kind:?}, not a list of kind {expected}"));
    }
    if metadata.resource_version.is_empty() {
        return Err("the list has no resourceVersion".into());
    }
    Ok(metadata)
}
