//! What was told so far: names and a hash of the content, enough to see what a new list changed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::assemble::ObjectId;

#[derive(Debug, Default)]
pub(super) struct Known {
    round: u32,
    entries: HashMap<ObjectId, Entry>,
}

/// What an object says, as far as it matters here. Versions play no part: after etcd was restored from a backup, the
/// same version can stand for other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content(u64);

impl Content {
    /// 64 bits are enough: content is only ever compared with that of the same object.
    pub(super) fn of(object: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        Content(hasher.finish())
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    content: Content,
    round: u32,
    parts: u16,
}

/// An object that is there, compared with what was known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    New,
    /// Was so many parts before.
    Changed(u16),
    Same(u16),
}

impl Met {
    /// How many parts the object was before.
    pub(super) fn parts(self) -> u16 {
        match self {
            Met::New => 0,
            Met::Changed(parts) | Met::Same(parts) => parts,
        }
    }
}

impl Known {
    /// A list begins: what it does not mention until [`Known::sweep`] is gone.
    pub(super) fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// An object is there.
    pub(super) fn meet(&mut self, id: &ObjectId, content: Content) -> Met {
        let Some(entry) = self.entries.get_mut(id) else {
            return Met::New;
        };
        entry.round = self.round;
        if entry.content == content {
            Met::Same(entry.parts)
        } else {
            Met::Changed(entry.parts)
        }
    }

    pub(super) fn remember(&mut self, id: ObjectId, content: Content, parts: u16) {
        self.entries.insert(
            id,
            Entry {
                content,
                round: self.round,
                parts,
            },
        );
    }

    /// An object is gone. Tells the number of its parts, or `None` if it was not known anyway.
    pub(super) fn forget(&mut self, id: &ObjectId) -> Option<u16> {
        self.entries.remove(id).map(|entry| entry.parts)
    }

    /// A list is complete: forgets and tells what it did not mention.
    pub(super) fn sweep(&mut self) -> Vec<(ObjectId, u16)> {
        let round = self.round;
        self.entries
            .extract_if(|_, entry| entry.round != round)
            .map(|(id, entry)| (id, entry.parts))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::ServiceName;

    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::Service(ServiceName::new("ns", name))
    }

    #[test]
    fn a_new_list_tells_what_changed_and_what_went() {
        let mut known = Known::default();
        known.begin();
        let (old, new) = (Content::of(&"old"), Content::of(&"new"));
        for name in ["same", "changed", "gone"] {
            assert_eq!(known.meet(&id(name), old), Met::New);
            known.remember(id(name), old, 2);
        }
        assert!(known.sweep().is_empty());

        known.begin();
        assert_eq!(known.meet(&id("same"), old), Met::Same(2));
        assert_eq!(known.meet(&id("changed"), new), Met::Changed(2));
        assert_eq!(known.sweep(), [(id("gone"), 2)]);
        assert_eq!(known.forget(&id("gone")), None);
        assert_eq!(known.forget(&id("same")), Some(2));
    }
}
