//! What was told so far: names and a hash of the content, enough to see what a new list changed.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

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
        let mut hasher = Folded(FACTOR);
        object.hash(&mut hasher);
        Content(hasher.finish())
    }
}

/// Multiplies and folds, eight bytes at a time. Every object of a list is hashed, which took the standard hasher as
/// long as reading it; that one also holds against somebody who looks for collisions, who would gain nothing here.
struct Folded(u64);

/// Odd, and without a pattern: the digits of pi.
const FACTOR: u64 = 0x243f_6a88_85a3_08d3;

impl Folded {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        // The length keeps what is filled up apart from what ends with zeros.
        self.add(bytes.len() as u64 ^ FACTOR.rotate_left(32));
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(byte.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
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
    fn content_that_differs_anywhere_is_told_apart() {
        let mut seen = std::collections::HashSet::new();
        let texts = (0..20_000_u32).map(|n| n.to_string());
        let zeros = (0..40).map(|n| "\0".repeat(n));
        for text in texts.chain(zeros) {
            assert!(seen.insert(Content::of(&text).0), "{text:?}");
        }
        let lists: [&[&str]; 6] = [&[], &[""], &["", ""], &["a", "b"], &["ab"], &["b", "a"]];
        for list in lists {
            assert!(seen.insert(Content::of(&list).0), "{list:?}");
        }
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
