//! The ring itself: entries as they are told, as JSON, so that its size in memory is known to the byte.

use std::collections::VecDeque;

use super::report::{Entry, What};

/// What an entry costs beside its text.
const OVERHEAD: usize = size_of::<Box<[u8]>>() + 16;

#[derive(Debug)]
pub(super) struct Ring {
    bound: usize,
    bytes: usize,
    next: u64,
    forgotten: u64,
    entries: VecDeque<Box<[u8]>>,
}

impl Ring {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            bytes: 0,
            next: 1,
            forgotten: 0,
            entries: VecDeque::new(),
        }
    }

    /// Takes an entry and forgets the oldest ones that there is no room for any more. Returns its number.
    pub(super) fn push(&mut self, time: String, what: What) -> u64 {
        let number = self.next;
        self.next += 1;
        self.keep(&Entry { number, time, what });
        number
    }

    /// Takes back one of the newest entries, the newest that is asked for.
    pub(super) fn take_recent(&mut self, is_asked_for: impl Fn(&Entry) -> bool) -> Option<Entry> {
        const RECENT: usize = 4;
        let recent = self.entries.len().saturating_sub(RECENT)..self.entries.len();
        let found = recent.rev().find_map(|index| {
            let entry = read(&self.entries[index]).filter(&is_asked_for)?;
            Some((index, entry))
        });
        let (index, entry) = found?;
        self.bytes -= self.entries.remove(index).map_or(0, |old| old.len() + OVERHEAD);
        Some(entry)
    }

    pub(super) fn keep(&mut self, entry: &Entry) {
        // Serializing plain data cannot fail; an entry that could not be written would only be missing.
        let Ok(text) = serde_json::to_vec(entry) else {
            return;
        };
        self.bytes += text.len() + OVERHEAD;
        self.entries.push_back(text.into());
        while self.bytes > self.bound {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= oldest.len() + OVERHEAD;
            self.forgotten += 1;
        }
    }

    /// The oldest first.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.iter().filter_map(|entry| read(entry)).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Entries that there was no room for any more.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

fn read(entry: &[u8]) -> Option<Entry> {
    serde_json::from_slice(entry).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_newest_within_its_bound() {
        let bound = 10_000;
        let mut ring = Ring::new(bound);
        for n in 0..1000 {
            let objects = vec![format!("Service shop/s{n}: {}", "x".repeat(n % 100))];
            let number = ring.push(
                "2026-11-15T10:47:51.000000Z".into(),
                What::Refused { objects, more: 0 },
            );
            assert_eq!(number, n as u64 + 1);
            assert!(ring.bytes() <= bound);
        }
        let kept = ring.entries();
        assert!(kept.len() > 20, "{}", kept.len());
        assert_eq!(kept.last().map(|entry| entry.number), Some(1000));
        assert!(kept.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        assert_eq!(ring.forgotten() + kept.len() as u64, 1000);
        let counted: usize = ring.entries.iter().map(|entry| entry.len() + OVERHEAD).sum();
        assert_eq!(counted, ring.bytes());
    }
}
