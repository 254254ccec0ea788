//! One copy of texts that many objects repeat: node names, zones, port names.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Hands out one shared copy of each text. Copies that nobody else holds any more are dropped as the set grows.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Texts {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

const SMALLEST_SWEEP: usize = 1024;

impl Interner {
    pub fn get(&self, text: &str) -> Arc<str> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = texts.known.get(text) {
            return known.clone();
        }
        texts.sweep();
        let new: Arc<str> = text.into();
        texts.known.insert(new.clone());
        new
    }

    pub fn len(&self) -> usize {
        self.texts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .known
            .len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Texts {
    fn sweep(&mut self) {
        if self.known.len() < self.sweep_at.max(SMALLEST_SWEEP) {
            return;
        }
        self.known.retain(|text| Arc::strong_count(text) > 1);
        self.sweep_at = self.known.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_one_copy() {
        let interner = Interner::default();
        let (a, b) = (interner.get("node-1"), interner.get("node-1"));
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(interner.len(), 1);
    }

    #[test]
    fn texts_that_nobody_holds_do_not_pile_up() {
        let interner = Interner::default();
        let kept = interner.get("kept");
        for n in 0..10 * SMALLEST_SWEEP {
            interner.get(&format!("passing-{n}"));
        }
        assert!(interner.len() <= 2 * SMALLEST_SWEEP, "{} texts", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.get("kept")));
    }
}
