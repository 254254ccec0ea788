//! An object of any kind that is followed, and how it is read.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::protobuf::Identity;
use super::wire::{Malformed, Message};
use super::{EndpointSlice, Endpoints, Header, HeaderMeta, Meta, Node, Service, ServiceCidr};
use crate::bounded;

/// What to read an object as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    Service,
    EndpointSlice,
    Endpoints,
    Node,
    ServiceCidr,
}

impl Shape {
    pub const ALL: [Shape; 5] = [
        Shape::Service,
        Shape::EndpointSlice,
        Shape::Endpoints,
        Shape::Node,
        Shape::ServiceCidr,
    ];

    /// The shape of objects that call themselves so; `None` for all that a service proxy does not look at.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            ("v1", "Service") => Some(Shape::Service),
            ("v1", "Endpoints") => Some(Shape::Endpoints),
            ("v1", "Node") => Some(Shape::Node),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Shape::EndpointSlice),
            ("networking.k8s.io/v1", "ServiceCIDR") => Some(Shape::ServiceCidr),
            _ => None,
        }
    }

    pub fn kind(self) -> &'static str {
        match self {
            Shape::Service => "Service",
            Shape::EndpointSlice => "EndpointSlice",
            Shape::Endpoints => "Endpoints",
            Shape::Node => "Node",
            Shape::ServiceCidr => "ServiceCIDR",
        }
    }

    pub fn is_namespaced(self) -> bool {
        match self {
            Shape::Service | Shape::EndpointSlice | Shape::Endpoints => true,
            Shape::Node | Shape::ServiceCidr => false,
        }
    }
}

/// An object that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
    Endpoints(Box<Endpoints>),
    Node(Box<Node>),
    ServiceCidr(Box<ServiceCidr>),
}

/// An object that cannot be read. Whose it is can be told even so, mostly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub identity: Option<HeaderMeta>,
    /// Names the field and what is wrong with it, in one short line.
    pub reason: String,
}

impl Object {
    /// Reads an object from JSON text.
    pub fn from_json(shape: Shape, json: &[u8]) -> Result<Self, Unreadable> {
        Self::read(shape, || serde_json::Deserializer::from_slice(json))
    }

    /// Reads an object from a tree.
    pub fn from_value(shape: Shape, value: &serde_json::Value) -> Result<Self, Unreadable> {
        Self::read(shape, || value)
    }

    /// Reads an object from protobuf, without its wrapping.
    pub fn from_protobuf(shape: Shape, bytes: &[u8]) -> Result<Self, Unreadable> {
        let read = match shape {
            Shape::Service => message(bytes).map(Object::Service),
            Shape::EndpointSlice => message(bytes).map(Object::EndpointSlice),
            Shape::Endpoints => message(bytes).map(Object::Endpoints),
            Shape::Node => message(bytes).map(Object::Node),
            Shape::ServiceCidr => message(bytes).map(Object::ServiceCidr),
        };
        read.map_err(|malformed| {
            let mut identity = Identity::default();
            identity.merge_beginning(bytes);
            Unreadable {
                identity: Some(identity.0),
                reason: malformed.to_string(),
            }
        })
    }

    fn read<'de, D>(shape: Shape, source: impl Fn() -> D) -> Result<Self, Unreadable>
    where
        D: Source<'de>,
    {
        let read = match shape {
            Shape::Service => typed(source()).map(Object::Service),
            Shape::EndpointSlice => typed(source()).map(Object::EndpointSlice),
            Shape::Endpoints => typed(source()).map(Object::Endpoints),
            Shape::Node => typed(source()).map(Object::Node),
            Shape::ServiceCidr => typed(source()).map(Object::ServiceCidr),
        };
        read.map_err(|reason| Unreadable {
            identity: source().read::<Header>().ok().map(|header| header.metadata),
            reason,
        })
    }

    pub fn meta(&self) -> &Meta {
        match self {
            Object::Service(object) => &object.metadata,
            Object::EndpointSlice(object) => &object.metadata,
            Object::Endpoints(object) => &object.metadata,
            Object::Node(object) => &object.metadata,
            Object::ServiceCidr(object) => &object.metadata,
        }
    }

    pub fn meta_mut(&mut self) -> &mut Meta {
        match self {
            Object::Service(object) => &mut object.metadata,
            Object::EndpointSlice(object) => &mut object.metadata,
            Object::Endpoints(object) => &mut object.metadata,
            Object::Node(object) => &mut object.metadata,
            Object::ServiceCidr(object) => &mut object.metadata,
        }
    }

    /// Whether the selectors of a service proxy's watches let the object through. An API server is asked to
    /// apply them; a directory cannot be.
    pub fn is_selected(&self) -> bool {
        match self {
            Object::Service(service) => {
                service.metadata.labels.service_proxy_name.is_none() && service.spec.cluster_ip != "None"
            }
            Object::EndpointSlice(slice) => slice.metadata.labels.headless.is_none(),
            Object::Endpoints(endpoints) => endpoints.metadata.labels.headless.is_none(),
            Object::Node(_) | Object::ServiceCidr(_) => true,
        }
    }
}

/// What an object can be read from, once or again.
trait Source<'de> {
    fn read<T: Deserialize<'de>>(self) -> Result<T, String>;
}

impl<'de> Source<'de> for serde_json::Deserializer<serde_json::de::SliceRead<'de>> {
    fn read<T: Deserialize<'de>>(mut self) -> Result<T, String> {
        let value = serde_path_to_error::deserialize(&mut self).map_err(|error| readable(&error))?;
        self.end().map_err(|error| error.to_string())?;
        Ok(value)
    }
}

impl<'de> Source<'de> for &'de serde_json::Value {
    fn read<T: Deserialize<'de>>(self) -> Result<T, String> {
        serde_path_to_error::deserialize(self).map_err(|error| readable(&error))
    }
}

fn typed<'de, T: DeserializeOwned>(source: impl Source<'de>) -> Result<Box<T>, String> {
    source.read::<T>().map(Box::new)
}

fn message<'a, T: Message<'a> + Default>(bytes: &'a [u8]) -> Result<Box<T>, Malformed> {
    T::read(bytes).map(Box::new)
}

fn readable(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    bounded::reason(&match path.as_str() {
        "." => error.inner().to_string(),
        path => format!("{path}: {}", error.inner()),
    })
}
