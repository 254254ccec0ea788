//! From a [`Node`] to the types of serde, with Go's manners: `null` is as if the field were not there, the last of
//! two equal keys counts, unknown fields are noted and passed over, and a value of the wrong type is refused by the
//! name of its field and with its line.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Entry, Node, Value};

/// Why a value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", line.map(|line| format!(" (line {line})")).unwrap_or_default())]
pub struct DecodeError {
    pub message: String,
    pub line: Option<usize>,
}

impl DecodeError {
    pub fn whole(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            line: None,
        }
    }

    fn at(self, node: &Node) -> Self {
        Self {
            line: self.line.or(Some(node.line)),
            ..self
        }
    }
}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::whole(message.to_string())
    }
}

/// Fields that mean nothing here, as dotted paths, with their lines.
pub type Unknown = Vec<(String, usize)>;

/// Reads a value, and notes the fields that it does not have.
pub fn decode<T: for<'de> Deserialize<'de>>(node: &Node) -> Result<(T, Unknown), DecodeError> {
    let unknown = RefCell::default();
    let value = T::deserialize(Decoder {
        node,
        owner: "",
        path: String::new(),
        index: None,
        wanted: None,
        unknown: &unknown,
    })
    .map_err(|error| error.at(node))?;
    Ok((value, unknown.into_inner()))
}

/// A text or a number, for fields that take either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scalar {
    Text(String),
    /// In decimal.
    Number(String),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number.to_string()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number.to_string()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

struct Decoder<'a> {
    node: &'a Node,
    /// The structure that the value belongs to, by the name that kube-proxy's messages have for it.
    owner: &'static str,
    path: String,
    /// Its number, if it is an item of a list.
    index: Option<usize>,
    /// What the field takes, where that is not seen from the shape of the value.
    wanted: Option<&'static str>,
    unknown: &'a RefCell<Unknown>,
}

impl<'a> Decoder<'a> {
    fn mismatch<T>(&self, wanted: &str) -> Result<T, DecodeError> {
        let got = match &self.node.value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(_) if matches!(wanted, "string" | "bool") => "number".to_owned(),
            Value::Number(text) => format!("number {text}"),
            Value::Text(_) => "string".to_owned(),
            Value::List(_) => "array".to_owned(),
            Value::Map(_) => "object".to_owned(),
        };
        let message = format!(
            "json: cannot unmarshal {got} into Go struct field {}.{} of type {wanted}",
            self.owner, self.path
        );
        Err(DecodeError::whole(message).at(self.node))
    }

    fn number<T: std::str::FromStr>(&self, wanted: &str) -> Result<T, DecodeError> {
        let parsed = match &self.node.value {
            Value::Number(text) => text.parse().ok(),
            _ => None,
        };
        parsed.map_or_else(|| self.mismatch(wanted), Ok)
    }

    /// The path of a field; those of a list's items are told apart by number.
    fn path_of(&self, field: &str) -> String {
        match self.index {
            Some(i) => format!("{}[{i}].{field}", self.path),
            None if self.path.is_empty() => field.to_owned(),
            None => format!("{}.{field}", self.path),
        }
    }

    /// A value of this one's, under the same name.
    fn item(&self, node: &'a Node) -> Self {
        Self {
            node,
            owner: self.owner,
            path: self.path.clone(),
            index: None,
            wanted: None,
            unknown: self.unknown,
        }
    }
}

impl<'de> Deserializer<'de> for Decoder<'de> {
    type Error = DecodeError;

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Null => visitor.visit_bool(false),
            _ => self.mismatch("bool"),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_i32(self.number("int32")?)
    }

    /// The only numbers without a sign are verbosities.
    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_u32(self.number("v1.VerbosityLevel")?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let value: f32 = self.number("float32")?;
        if value.is_infinite() {
            return self.mismatch("float32");
        }
        visitor.visit_f32(value)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_str(text),
            Value::Null => visitor.visit_str(""),
            _ => self.mismatch("string"),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.wanted = Some(name);
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items {
                list: &self,
                items: items.iter().enumerate(),
            }),
            _ => self.mismatch(self.wanted.unwrap_or("[]string")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Map(entries) => visitor.visit_map(Entries {
                map: &self,
                owner: None,
                rest: entries.iter().collect::<Vec<_>>().into_iter(),
                value: None,
            }),
            _ => self.mismatch("map[string]bool"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let Value::Map(entries) = &self.node.value else {
            return self.mismatch(name);
        };
        let mut known: Vec<&Entry> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for entry in entries.iter() {
            let key = entry.key.as_str();
            if fields.contains(&key) {
                known.retain(|earlier| earlier.key != key);
                known.push(entry);
            } else if !seen.contains(&key) {
                seen.push(key);
                let path = self.path_of(key);
                self.unknown.borrow_mut().push((path, entry.line));
            }
        }
        known.retain(|entry| !matches!(entry.node.value, Value::Null));
        visitor.visit_map(Entries {
            map: &self,
            owner: Some(name),
            rest: known.into_iter(),
            value: None,
        })
    }

    /// Only [`Scalar`] takes what comes.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_str(text),
            Value::Number(text) => match text.parse() {
                Ok(integer) => visitor.visit_i64(integer),
                Err(_) => visitor.visit_f64(self.number("float64")?),
            },
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => {
                self.mismatch(self.wanted.unwrap_or("string"))
            }
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i64 i128 u8 u16 u64 u128 f64 char str bytes byte_buf unit unit_struct tuple tuple_struct enum
        identifier ignored_any
    }
}

struct Items<'p, 'a> {
    list: &'p Decoder<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some((i, node)) = self.items.next() else {
            return Ok(None);
        };
        let mut item = self.list.item(node);
        item.index = Some(i);
        seed.deserialize(item).map(Some).map_err(|error| error.at(node))
    }
}

struct Entries<'p, 'a> {
    map: &'p Decoder<'a>,
    /// The structure that the entries are fields of; `None`: their keys are data.
    owner: Option<&'static str>,
    rest: std::vec::IntoIter<&'a Entry>,
    value: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        self.value = self.rest.next();
        let Some(entry) = self.value else {
            return Ok(None);
        };
        let key: StrDeserializer<'_, DecodeError> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let Some(entry) = self.value.take() else {
            return Err(DecodeError::whole("a value without a key"));
        };
        let mut value = self.map.item(&entry.node);
        if let Some(owner) = self.owner {
            (value.owner, value.path) = (owner, self.map.path_of(&entry.key));
        }
        seed.deserialize(value).map_err(|error| error.at(&entry.node))
    }
}
