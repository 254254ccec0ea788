//! What a watch has told so far: names and versions only, enough to see what a new list changed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::assemble::ObjectId;

#[derive(Debug, Default)]
pub(super) struct Known {
    round: u32,
    entries: HashMap<ObjectId, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of the resource version; `None` where the object has none, so that nothing can be told from it.
    version: Option<u64>,
    round: u32,
    parts: u16,
}

impl Known {
    /// A list begins: what it does not mention until [`Known::sweep`] is gone.
    pub(super) fn begin(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// An object is there. Tells the number of its parts if this is news, or `None` if exactly this was known.
    pub(super) fn meet(&mut self, id: &ObjectId, version: &str) -> Option<u16> {
        let Some(entry) = self.entries.get_mut(id) else {
            return Some(0);
        };
        entry.round = self.round;
        let same = entry.version.is_some() && entry.version == hash(version);
        (!same).then_some(entry.parts)
    }

    pub(super) fn remember(&mut self, id: ObjectId, version: &str, parts: u16) {
        self.entries.insert(
            id,
            Entry {
                version: hash(version),
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

/// Versions are opaque, and only ever compared with a version of the same object: 64 bits are enough.
fn hash(version: &str) -> Option<u64> {
    if version.is_empty() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    Some(hasher.finish())
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
        for name in ["same", "changed", "gone", "unversioned"] {
            assert_eq!(known.meet(&id(name), "1"), Some(0));
            known.remember(id(name), if name == "unversioned" { "" } else { "1" }, 2);
        }
        assert!(known.sweep().is_empty());

        known.begin();
        assert_eq!(known.meet(&id("same"), "1"), None);
        assert_eq!(known.meet(&id("changed"), "2"), Some(2));
        assert_eq!(known.meet(&id("unversioned"), ""), Some(2));
        assert_eq!(known.sweep(), [(id("gone"), 2)]);
        assert_eq!(known.forget(&id("gone")), None);
        assert_eq!(known.forget(&id("same")), Some(2));
    }
}
