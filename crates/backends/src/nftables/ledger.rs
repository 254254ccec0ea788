//! Who needs what is shared: a count for each shared thing, and which of them appeared or went since the last commit.

use std::collections::{BTreeMap, HashMap};

use super::render::{Piece, Shared};

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    counts: HashMap<Shared, u32>,
    /// What changed hands since the last settlement, and whether it was there then.
    touched: BTreeMap<Shared, bool>,
}

impl Ledger {
    /// Counts what the pieces of a service share.
    pub(super) fn take(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Piece::Shared(shared) = piece {
                self.take_one(shared);
            }
        }
    }

    /// The opposite.
    pub(super) fn release(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Piece::Shared(shared) = piece {
                self.release_one(shared);
            }
        }
    }

    /// What is new and what is gone since the last settlement.
    pub(super) fn settle(&mut self) -> (Vec<Shared>, Vec<Shared>) {
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for (shared, was_there) in std::mem::take(&mut self.touched) {
            match (was_there, self.counts.contains_key(&shared)) {
                (false, true) => new.push(shared),
                (true, false) => gone.push(shared),
                (true, true) | (false, false) => {}
            }
        }
        (new, gone)
    }

    fn take_one(&mut self, shared: &Shared) {
        if let Some(count) = self.counts.get_mut(shared) {
            *count += 1;
            return;
        }
        self.touched.entry(shared.clone()).or_insert(false);
        self.counts.insert(shared.clone(), 1);
        shared.needs().iter().for_each(|needed| self.take_one(needed));
    }

    fn release_one(&mut self, shared: &Shared) {
        let Some(count) = self.counts.get_mut(shared) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(shared);
            self.touched.entry(shared.clone()).or_insert(true);
            shared.needs().iter().for_each(|needed| self.release_one(needed));
        }
    }
}
