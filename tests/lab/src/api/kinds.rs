//! The kinds that the server knows.

/// A kind of object and where it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    /// Empty for the core group.
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) short: &'static str,
    pub(super) namespaced: bool,
    /// Field selectors that the real server allows beside the two of metadata.
    pub(super) fields: &'static [&'static str],
}

impl Kind {
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub(super) fn is_event(&self) -> bool {
        self.plural == "events"
    }
}

const fn kind(group: &'static str, kind: &'static str, plural: &'static str, short: &'static str) -> Kind {
    Kind {
        group,
        version: "v1",
        kind,
        plural,
        short,
        namespaced: true,
        fields: &[],
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) const KINDS: [Kind; 14] = [
    Kind {
        fields: &["spec.clusterIP", "spec.type"],
        ..kind("", "Service", "services", "svc")
    },
    kind("", "Endpoints", "endpoints", "ep"),
    Kind {
        namespaced: false,
        fields: &["spec.unschedulable"],
        ..kind("", "Node", "nodes", "no")
    },
    Kind {
        namespaced: false,
        fields: &["status.phase"],
        ..kind("", "Namespace", "namespaces", "ns")
    },
    kind("", "Event", "events", "ev"),
    kind("discovery.k8s.io", "EndpointSlice", "endpointslices", ""),
    Kind {
        namespaced: false,
        ..kind("networking.k8s.io", "ServiceCIDR", "servicecidrs", "")
    },
    kind("events.k8s.io", "Event", "events", "ev"),
    // what an installation is made of
    kind("", "ServiceAccount", "serviceaccounts", "sa"),
    kind("", "ConfigMap", "configmaps", "cm"),
    kind("apps", "DaemonSet", "daemonsets", "ds"),
    kind(RBAC, "Role", "roles", ""),
    kind(RBAC, "RoleBinding", "rolebindings", ""),
    Kind {
        namespaced: false,
        ..kind(RBAC, "ClusterRoleBinding", "clusterrolebindings", "")
    },
];

/// The kind of an object that says its apiVersion and kind.
pub(super) fn of_object(api_version: &str, kind: &str) -> Option<&'static Kind> {
    KINDS
        .iter()
        .find(|k| k.kind == kind && k.api_version() == api_version)
}

/// Where a request path leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) kind: &'static Kind,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

/// Reads `/api/v1/[namespaces/NS/]PLURAL[/NAME]` and its `/apis/GROUP/VERSION` sister.
pub(super) fn of_path(path: &str) -> Option<Target<'_>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let find = |plural: &str, namespaced: bool| {
        KINDS.iter().find(|k| {
            k.plural == plural && k.group == group && k.version == version && (k.namespaced || !namespaced)
        })
    };
    let (kind, namespace, name) = match *rest {
        ["namespaces", namespace, plural, name] => (find(plural, true)?, Some(namespace), Some(name)),
        ["namespaces", namespace, plural] => (find(plural, true)?, Some(namespace), None),
        [plural, name] => (find(plural, false).filter(|k| !k.namespaced)?, None, Some(name)),
        [plural] => (find(plural, false)?, None, None),
        _ => return None,
    };
    Some(Target {
        kind,
        namespace,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let at = |path| of_path(path).map(|t| (t.kind.kind, t.namespace, t.name));
        assert_eq!(at("/api/v1/services"), Some(("Service", None, None)));
        assert_eq!(at("/api/v1/nodes/a"), Some(("Node", None, Some("a"))));
        assert_eq!(at("/api/v1/namespaces/x"), Some(("Namespace", None, Some("x"))));
        assert_eq!(
            at("/api/v1/namespaces/x/services/y"),
            Some(("Service", Some("x"), Some("y")))
        );
        assert_eq!(
            at("/apis/discovery.k8s.io/v1/namespaces/x/endpointslices"),
            Some(("EndpointSlice", Some("x"), None))
        );
        for nothing in [
            "/api/v1/endpointslices",
            "/api/v1/services/y",
            "/api/v1/namespaces/x/nodes",
            "/apis/discovery.k8s.io/v1beta1/endpointslices",
            "/metrics",
        ] {
            assert_eq!(at(nothing), None, "{nothing}");
        }
    }
}
