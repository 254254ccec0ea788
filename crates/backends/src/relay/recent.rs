//! A map that knows which entry was used least recently, without paying for it on every use.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// When an entry was last of use; never goes back.
pub(super) trait LastUsed {
    fn last_used(&self) -> Instant;
}

/// Entries are filed under the time of their last use as it was known. Using one does not move it: only when it comes
/// to the front is its last use looked at again, and if that is later, it is filed anew. An entry at the front that
/// was not used since is the least recently used of all.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    entries: HashMap<K, Slot<V>>,
    order: BTreeMap<Place, K>,
    serial: u64,
}

/// The serial number tells entries of one moment apart.
type Place = (Instant, u64);

#[derive(Debug)]
struct Slot<V> {
    value: V,
    place: Place,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            serial: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, V: LastUsed> Recent<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|slot| &slot.value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|slot| &mut slot.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, slot)| (key, &slot.value))
    }

    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        self.serial += 1;
        let place = (value.last_used(), self.serial);
        self.order.insert(place, key);
        self.entries.insert(key, Slot { value, place });
        before
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.entries.remove(key)?;
        self.order.remove(&slot.place);
        Some(slot.value)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let order = &mut self.order;
        self.entries.retain(|key, slot| {
            let keeps = keep(key, &slot.value);
            if !keeps {
                order.remove(&slot.place);
            }
            keeps
        });
    }

    /// Takes out the entry that was used least recently.
    pub(super) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (_, key) = self.oldest()?;
        Some((key, self.remove(&key)?))
    }

    /// Takes out the entry that was used least recently, if that was before `cutoff`.
    pub(super) fn pop_unused_since(&mut self, cutoff: Instant) -> Option<(K, V)> {
        // What is filed later cannot have been used earlier.
        if self.order.first_key_value()?.0.0 >= cutoff {
            return None;
        }
        let (used, key) = self.oldest()?;
        (used < cutoff).then(|| Some((key, self.remove(&key)?))).flatten()
    }

    fn oldest(&mut self) -> Option<(Instant, K)> {
        loop {
            let (place, key) = self.order.first_key_value().map(|(place, key)| (*place, *key))?;
            let slot = self.entries.get_mut(&key)?;
            let used = slot.value.last_used();
            if used <= place.0 {
                return Some((place.0, key));
            }
            slot.place.0 = used;
            self.order.remove(&place);
            self.order.insert((used, place.1), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct At(Instant);

    impl LastUsed for At {
        fn last_used(&self) -> Instant {
            self.0
        }
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let start = Instant::now();
        let at = |s| At(start + Duration::from_secs(s));
        let mut recent = Recent::default();
        for key in 0..4u32 {
            recent.insert(key, at(key.into()));
        }
        recent.get_mut(&0).unwrap().0 = start + Duration::from_secs(10);
        assert_eq!(recent.pop_oldest().unwrap().0, 1);
        assert!(recent.pop_unused_since(start + Duration::from_secs(2)).is_none());
        assert_eq!(
            recent.pop_unused_since(start + Duration::from_secs(3)).unwrap().0,
            2
        );
        assert_eq!(recent.pop_oldest().unwrap().0, 3);
        assert_eq!(recent.pop_oldest().unwrap().0, 0);
        assert!(recent.pop_oldest().is_none());
    }

    #[test]
    fn replaced_and_removed_entries_leave_nothing_behind() {
        let start = Instant::now();
        let mut recent = Recent::default();
        for round in 0..1000u32 {
            recent.insert(round % 3, At(start));
            recent.insert(100 + round, At(start));
            recent.remove(&(100 + round));
        }
        assert_eq!(recent.len(), 3);
        assert_eq!(recent.order.len(), 3);
        recent.retain(|key, _| *key == 1);
        assert_eq!(recent.order.len(), 1);
        assert_eq!(recent.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1]);
    }
}
