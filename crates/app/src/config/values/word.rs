//! Fields that take one of a few words.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A type whose values have names.
pub trait Named: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    fn name(self) -> &'static str;

    /// The value of this name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}

/// What was written where a name was expected. A word that is no name is kept, to be refused together with every
/// other fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Word<T> {
    #[default]
    Blank,
    Known(T),
    Unknown(String),
}

impl<T: Named> Word<T> {
    /// Every name, sorted.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = T::ALL.iter().map(|value| value.name()).collect();
        names.sort_unstable();
        names
    }

    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Blank | Self::Unknown(_) => None,
        }
    }

    pub fn is_blank(&self) -> bool {
        matches!(self, Self::Blank)
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Blank => "",
            Self::Known(value) => value.name(),
            Self::Unknown(word) => word,
        }
    }
}

impl<T: Named> From<&str> for Word<T> {
    fn from(word: &str) -> Self {
        match T::named(word) {
            Some(value) => Self::Known(value),
            None if word.is_empty() => Self::Blank,
            None => Self::Unknown(word.to_owned()),
        }
    }
}

impl<T: Named> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Named> PartialEq<&str> for Word<T> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl<T: Named> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Named> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|word| Self::from(word.as_str()))
    }
}

/// A [`Word`] of any type, for flags.
pub trait Choice {
    fn choose(&mut self, word: &str);
    fn as_str(&self) -> &str;
    fn names(&self) -> Vec<&'static str>;
}

impl<T: Named> Choice for Word<T> {
    fn choose(&mut self, word: &str) {
        *self = Self::from(word);
    }

    fn as_str(&self) -> &str {
        self.as_str()
    }

    fn names(&self) -> Vec<&'static str> {
        Self::names()
    }
}
