//! What is asked of the API server: paths, selectors and the parameters of lists and watches.

use std::fmt::Write;

use crate::assemble::Kind;
use crate::objects::{Object, Shape};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Services,
    EndpointSlices,
    /// For clusters that serve no EndpointSlices.
    Endpoints,
    /// Our own, by its name.
    Node(String),
    ServiceCidrs,
}

/// What of a list is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Everything, as the server's cache has it: it costs the server little, and may be a moment old.
    Cached,
    /// Everything, as it is now.
    Current,
    /// What the server left out of its answer, though it was not asked to.
    Rest(String),
    /// One object, for the version that the server is at.
    One,
}

/// Where a watch begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// With every existing object, then a bookmark, then the changes.
    Everything,
    After(String),
}

impl Resource {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Resource::Services => Kind::Service,
            Resource::EndpointSlices | Resource::Endpoints => Kind::EndpointSlice,
            Resource::Node(_) => Kind::Node,
            Resource::ServiceCidrs => Kind::ServiceCidr,
        }
    }

    pub(super) fn shape(&self) -> Shape {
        match self {
            Resource::Services => Shape::Service,
            Resource::EndpointSlices => Shape::EndpointSlice,
            Resource::Endpoints => Shape::Endpoints,
            Resource::Node(_) => Shape::Node,
            Resource::ServiceCidrs => Shape::ServiceCidr,
        }
    }

    /// As messages call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Resource::Services => "services",
            Resource::EndpointSlices => "endpointslices.discovery.k8s.io",
            Resource::Endpoints => "endpoints",
            Resource::Node(_) => "nodes",
            Resource::ServiceCidrs => "servicecidrs.networking.k8s.io",
        }
    }

    fn path(&self) -> &'static str {
        match self {
            Resource::Services => "/api/v1/services",
            Resource::EndpointSlices => "/apis/discovery.k8s.io/v1/endpointslices",
            Resource::Endpoints => "/api/v1/endpoints",
            Resource::Node(_) => "/api/v1/nodes",
            Resource::ServiceCidrs => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }

    /// Which objects the server is asked for.
    fn selectors(&self) -> Vec<(&'static str, String)> {
        match self {
            Resource::Services => vec![
                (
                    "labelSelector",
                    "!service.kubernetes.io/service-proxy-name".into(),
                ),
                ("fieldSelector", "spec.clusterIP!=None".into()),
            ],
            Resource::EndpointSlices | Resource::Endpoints => {
                vec![("labelSelector", "!service.kubernetes.io/headless".into())]
            }
            Resource::Node(name) => vec![("fieldSelector", format!("metadata.name={name}"))],
            Resource::ServiceCidrs => Vec::new(),
        }
    }

    /// Whether an object is one that was asked for.
    pub(super) fn wants(&self, object: &Object) -> bool {
        match self {
            Resource::Node(name) => object.meta().name == *name,
            Resource::Services | Resource::EndpointSlices | Resource::Endpoints | Resource::ServiceCidrs => {
                true
            }
        }
    }

    pub(super) fn list(&self, list: &List) -> String {
        let mut query = self.selectors();
        match list {
            List::Cached => query.push(("resourceVersion", "0".into())),
            List::Current => {}
            List::Rest(token) => query.push(("continue", token.clone())),
            List::One => query.push(("limit", "1".into())),
        }
        self.uri(query)
    }

    pub(super) fn watch(&self, start: &Start, seconds: u64) -> String {
        let mut query = self.selectors();
        query.extend([
            ("watch", "true".into()),
            ("allowWatchBookmarks", "true".into()),
            ("timeoutSeconds", seconds.to_string()),
        ]);
        match start {
            Start::Everything => query.extend([
                ("sendInitialEvents", "true".into()),
                ("resourceVersionMatch", "NotOlderThan".into()),
            ]),
            Start::After(version) => query.push(("resourceVersion", version.clone())),
        }
        self.uri(query)
    }

    fn uri(&self, query: Vec<(&'static str, String)>) -> String {
        let mut uri = self.path().to_owned();
        for (index, (key, value)) in query.into_iter().enumerate() {
            uri.push(if index == 0 { '?' } else { '&' });
            uri.push_str(key);
            uri.push('=');
            escape(&value, &mut uri);
        }
        uri
    }
}

fn escape(value: &str, into: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                into.push(char::from(byte))
            }
            // Writing to a String cannot fail.
            _ => drop(write!(into, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_the_selectors_of_a_service_proxy() {
        assert_eq!(
            Resource::Services.list(&List::Cached),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=0"
        );
        assert_eq!(
            Resource::EndpointSlices.watch(&Start::Everything, 400),
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless\
             &watch=true&allowWatchBookmarks=true&timeoutSeconds=400\
             &sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            Resource::Node("a b".into()).list(&List::Rest("x=&".into())),
            "/api/v1/nodes?fieldSelector=metadata.name%3Da%20b&continue=x%3D%26"
        );
        assert_eq!(
            Resource::ServiceCidrs.watch(&Start::After("7".into()), 300),
            "/apis/networking.k8s.io/v1/servicecidrs?watch=true&allowWatchBookmarks=true\
             &timeoutSeconds=300&resourceVersion=7"
        );
        assert_eq!(
            Resource::ServiceCidrs.list(&List::Current),
            "/apis/networking.k8s.io/v1/servicecidrs"
        );
    }
}
