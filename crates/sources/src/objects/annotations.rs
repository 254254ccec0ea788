//! Annotations: the trigger time and our own; everything else is skipped without being stored.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Written by the EndpointSlice controller: when the change that it reports happened (RFC 3339).
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

const OURS: &str = "ferry.dev/";

/// The annotations that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Annotations {
    pub trigger_time: Option<String>,
    /// Ours, without the `ferry.dev/` prefix, in the order of the object.
    pub ours: Vec<(String, String)>,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

/// Which of the values that follows the key is wanted.
pub(super) enum Key {
    TriggerTime,
    Ours(String),
    Other,
}

impl Key {
    pub(super) fn of(key: &str) -> Self {
        match key.strip_prefix(OURS) {
            Some(ours) => Key::Ours(ours.to_owned()),
            None if key == TRIGGER_TIME => Key::TriggerTime,
            None => Key::Other,
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyReader)
    }
}

struct KeyReader;

impl Visitor<'_> for KeyReader {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an annotation")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key::of(key))
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut kept = Annotations::default();
        while let Some(key) = map.next_key()? {
            match key {
                Key::TriggerTime => kept.trigger_time = map.next_value()?,
                Key::Ours(key) => kept.ours.push((key, map.next_value()?)),
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(kept)
    }
}
