//! Every kind of kubeconfig: what it comes to, or why it is refused.

use std::path::PathBuf;

use ferry_sources::kube::{ConnectError, Connection, check_kubeconfig};

use crate::pki::{P256, Pki};
use crate::server::{Server, ask, connection, kubeconfig};

const EXEC: &str = "command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never";

fn by(kubeconfig: Option<PathBuf>, master: Option<&str>) -> Result<String, ConnectError> {
    let connection = Connection {
        kubeconfig,
        master: master.map(str::to_owned),
        ..Connection::default()
    };
    connection.connect().map(|api| api.server().to_owned())
}

#[test]
fn the_server_is_found_as_client_go_finds_it() {
    let pki = Pki::new();
    pki.authority("ca", P256);
    let file = |text: &str| Some(pki.write("kubeconfig", text));
    let plain = |cluster: &str| kubeconfig(cluster, "{}");
    let ca = "certificate-authority: ca.crt";
    for (text, master, expected) in [
        (
            plain("{server: 'https://10.0.0.1:6443'}"),
            None,
            "https://10.0.0.1:6443",
        ),
        (
            plain("{server: 'https://10.0.0.1:6443/'}"),
            None,
            "https://10.0.0.1:6443",
        ),
        (
            plain("{server: 'https://10.0.0.1/a/b/?x=y#z'}"),
            None,
            "https://10.0.0.1/a/b",
        ),
        (plain("{server: '10.0.0.1:6443'}"), None, "http://10.0.0.1:6443"),
        (plain("{server: 'localhost'}"), None, "http://localhost"),
        (plain("{server: 'api:6443'}"), None, "http://api:6443"),
        (
            plain(&format!("{{server: '10.0.0.1:6443', {ca}}}")),
            None,
            "http://10.0.0.1:6443",
        ),
        (
            plain(&format!("{{server: 'https://a', {ca}}}")),
            Some("10.0.0.2:6443"),
            "http://10.0.0.2:6443",
        ),
        (
            plain(&format!("{{server: 'https://a', {ca}}}")),
            Some("https://[2001:db8::1]:6443"),
            "https://[2001:db8::1]:6443",
        ),
        (plain("{}"), Some("https://b"), "https://b"),
        (String::new(), Some("https://b"), "https://b"),
        ("# nothing\n".into(), Some("https://b"), "https://b"),
        ("{}".into(), Some("https://b"), "https://b"),
        (
            "apiVersion: v1\nkind: Config\n".into(),
            Some("https://b"),
            "https://b",
        ),
        (
            "clusters: [{name: c, cluster: {server: 'https://a'}}]".into(),
            Some("https://b"),
            "https://b",
        ),
        (
            "clusters: null\nusers: ~\ncontexts:\n".into(),
            Some("https://b"),
            "https://b",
        ),
        // A context whose user is not there is anonymous.
        (
            "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: x}}]\n\
          clusters: [{name: c, cluster: {server: 'https://a'}}]"
                .into(),
            None,
            "https://a",
        ),
        // Only the first document counts, and unknown fields do not.
        (
            plain("{server: 'https://a', later: [1, {x: y}]}") + "---\nkind: Other\n",
            None,
            "https://a",
        ),
        (
            serde_json::json!({
                "kind": "Config", "apiVersion": "v1", "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": null}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://a", "proxy-url": "socks5://p:1"}}],
            })
            .to_string(),
            None,
            "https://a",
        ),
    ] {
        let found = by(file(&text), master).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(by(None, Some("192.0.2.3:8001")).unwrap(), "http://192.0.2.3:8001");
    assert_eq!(by(None, Some("https://192.0.2.3/")).unwrap(), "https://192.0.2.3");
}

/// A wrong cluster or user, the field that is named, and what is said about it.
type Wrong = (&'static str, &'static str, &'static str, &'static str);

const WRONG: &[Wrong] = &[
    ("{}", "{}", "cluster \"c\": server", "no server"),
    ("{server: ''}", "{}", "cluster \"c\": server", "no server"),
    (
        "{server: 'ftp://a'}",
        "{}",
        "cluster \"c\": server",
        "neither http nor https",
    ),
    ("{server: 'https://'}", "{}", "cluster \"c\": server", "no host"),
    (
        "{server: \"https://a\\nb\"}",
        "{}",
        "cluster \"c\": server",
        "control character",
    ),
    (
        "{server: 'a/b'}",
        "{}",
        "cluster \"c\": server",
        "host and a port",
    ),
    (
        "{server: 'https://a:99999'}",
        "{}",
        "cluster \"c\": server",
        "port",
    ),
    (
        "{server: 'https://a', proxy-url: 'ftp://p'}",
        "{}",
        "proxy-url",
        "http, https or socks5",
    ),
    (
        "{server: 'https://a', proxy-url: '::'}",
        "{}",
        "proxy-url",
        "is not a URL",
    ),
    (
        "{server: 'https://a', insecure-skip-tls-verify: true, certificate-authority: ca.crt}",
        "{}",
        "insecure-skip-tls-verify",
        "certificate-authority is given too",
    ),
    (
        "{server: 'https://a', certificate-authority: ca.crt, certificate-authority-data: YQ==}",
        "{}",
        "certificate-authority",
        "both given",
    ),
    (
        "{server: 'https://a', certificate-authority-data: '%%%'}",
        "{}",
        "certificate-authority-data",
        "base64",
    ),
    (
        "{server: 'https://a', insecure-skip-tls-verify: 'maybe'}",
        "{}",
        "insecure-skip-tls-verify",
        "boolean",
    ),
    (
        "{server: ['https://a']}",
        "{}",
        "clusters[0].cluster.server",
        "string",
    ),
    (
        "{server: 'https://a'}",
        "{token: \"a\\nb\"}",
        "user \"u\": token",
        "line break",
    ),
    (
        "{server: 'https://a'}",
        "{token: \"a\\u0007b\"}",
        "user \"u\": token",
        "control character",
    ),
    (
        "{server: 'https://a'}",
        "{token: 'ä'}",
        "user \"u\": token",
        "not ASCII",
    ),
    (
        "{server: 'https://a'}",
        "{token: 17}",
        "users[0].user.token",
        "string",
    ),
    (
        "{server: 'https://a'}",
        "{token: t, username: me}",
        "user \"u\": username",
        "only one way",
    ),
    (
        "{server: 'https://a'}",
        "{token: t, password: p}",
        "user \"u\": username",
        "only one way",
    ),
    (
        "{server: 'https://a'}",
        "{tokenFile: t, username: me}",
        "user \"u\": username",
        "only one way",
    ),
    (
        "{server: 'https://a'}",
        "{auth-provider: {name: oidc}}",
        "auth-provider",
        "no provider \"oidc\"",
    ),
    (
        "{server: 'https://a'}",
        "{auth-provider: {name: gcp, config: {a: b}}}",
        "auth-provider",
        "no provider \"gcp\"",
    ),
    (
        "{server: 'https://a'}",
        "{client-certificate: c.crt}",
        "client-key",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{client-certificate: c.crt, client-certificate-data: YQ==, client-key: k}",
        "client-certificate",
        "both given",
    ),
    (
        "{server: 'https://a'}",
        "{client-certificate: c.crt, client-key: k, client-key-data: YQ==}",
        "client-key",
        "both given",
    ),
    (
        "{server: 'https://a'}",
        "{client-key-data: '!'}",
        "client-key-data",
        "base64",
    ),
    (
        "{server: 'https://a'}",
        "{as-uid: '1'}",
        "user \"u\": as",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{as-groups: [a]}",
        "user \"u\": as",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{as-user-extra: {a: [b]}}",
        "user \"u\": as",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{as: \"a\\nb\"}",
        "user \"u\": as",
        "header",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {}}",
        "exec.command",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, interactiveMode: Never}}",
        "exec.apiVersion",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1alpha1}}",
        "exec.apiVersion",
        "must be client.authentication.k8s.io/v1 or",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1}}",
        "exec.interactiveMode",
        "must be given",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}}",
        "exec.interactiveMode",
        "no terminal",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Perhaps}}",
        "exec.interactiveMode",
        "must be Never",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1, env: [{value: v}]}}",
        "exec.env",
        "no name",
    ),
    (
        "{server: 'https://a'}",
        "{exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1, args: [\"\\0\"]}}",
        "exec.command",
        "character",
    ),
    (
        "{server: 'https://a'}",
        "{exec: [p]}",
        "users[0].user.exec",
        "mapping",
    ),
];

#[test]
fn what_is_wrong_is_named() {
    let pki = Pki::new();
    for (cluster, user, field, reason) in WRONG {
        let error = match connection(&pki, cluster, user).connect() {
            Ok(api) => panic!("{cluster} {user} is taken: {api:?}"),
            Err(error) => error.to_string(),
        };
        let path = pki.path("kubeconfig").display().to_string();
        assert!(
            error.starts_with(&format!("cannot use kubeconfig {path}: ")),
            "{error}"
        );
        assert!(
            error.contains(field) && error.contains(reason),
            "{cluster} {user}: {error}"
        );
    }
    let with_both = format!("{{exec: {{{EXEC}}}, auth-provider: {{name: oidc}}}}");
    let error = connection(&pki, "{server: 'https://a'}", &with_both)
        .connect()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("auth-provider") && error.contains("exec is given too"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_as_a_whole_is_named() {
    let pki = Pki::new();
    let good = kubeconfig("{server: 'https://a'}", "{}");
    for (text, field, reason) in [
        (
            good.replace("kind: Config", "kind: Deployment"),
            "kind",
            "must be Config",
        ),
        (
            good.replace("apiVersion: v1", "apiVersion: v2"),
            "apiVersion",
            "must be v1",
        ),
        (
            good.replace("current-context: c", "current-context: other"),
            "current-context",
            "no context \"other\"",
        ),
        (
            good.replace("clusters:\n", "clusters:\n- name: c\n"),
            "clusters",
            "\"c\" stands twice",
        ),
        (
            good.replace("users:\n", "users:\n- name: u\n"),
            "users",
            "\"u\" stands twice",
        ),
        (
            good.replace("contexts:\n", "contexts:\n- name: c\n"),
            "contexts",
            "\"c\" stands twice",
        ),
        (
            good.replace("clusters:\n", "clusters:\n  - [\n"),
            "line",
            "not valid YAML",
        ),
        ("- a list\n".into(), "", "must be a mapping"),
        ("a: b\na: c\n".into(), "line 2", "not valid YAML"),
        (String::new(), "server", "no server"),
        ("\u{0}\u{1}".into(), "", "not valid YAML"),
        ("&a [*a, *a]".repeat(3), "", "not valid YAML"),
    ] {
        let error = by(Some(pki.write("kubeconfig", &text)), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(field) && error.contains(reason),
            "{text:?}: {error}"
        );
    }
    let missing = by(Some("/nowhere/kubeconfig".into()), None)
        .unwrap_err()
        .to_string();
    assert_eq!(
        missing,
        "cannot read kubeconfig /nowhere/kubeconfig: No such file or directory (os error 2)"
    );
    let master = by(None, Some("http://")).unwrap_err().to_string();
    assert!(master.starts_with("master: \"http://\" is not a URL"), "{master}");
}

#[test]
fn files_must_be_there_and_good_at_the_start() {
    let pki = Pki::new();
    pki.write("empty", "\n \n");
    pki.write("bad", "a\u{1}b");
    pki.authority("ca", P256);
    for (cluster, user, said) in [
        ("certificate-authority: missing", "{}", "missing: No such file"),
        ("tls-server-name: 'a b'", "{}", "\"a b\" is no name of a server"),
        (
            "disable-compression: true",
            "{tokenFile: missing}",
            "cannot read the token file",
        ),
        (
            "disable-compression: true",
            "{tokenFile: empty}",
            "empty is empty",
        ),
        ("disable-compression: true", "{tokenFile: bad}", "no token"),
        (
            "disable-compression: true",
            "{client-certificate: missing, client-key: ca.key}",
            "missing: No such file",
        ),
        (
            "disable-compression: true",
            "{client-certificate: ca.crt, client-key: missing}",
            "missing: No such file",
        ),
        (
            "disable-compression: true",
            "{client-certificate: ca.crt, client-key: ca.crt}",
            "holds no private key",
        ),
        (
            "disable-compression: true",
            "{client-certificate: ca.key, client-key: ca.key}",
            "holds no certificate",
        ),
        (
            "disable-compression: true",
            "{client-certificate-data: YQ==, client-key-data: YQ==}",
            "the client-certificate of the kubeconfig: it holds no certificate",
        ),
    ] {
        let cluster = format!("{{server: 'https://192.0.2.1', {cluster}}}");
        let error = connection(&pki, &cluster, user)
            .connect()
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("cannot make a client for https://192.0.2.1: ") && error.contains(said),
            "{error}"
        );
    }
}

#[test]
fn compression_is_asked_for_unless_that_is_switched_off() {
    let pki = Pki::new();
    let server = Server::clear(&pki);
    let cluster = |more: &str| format!("{{server: '{}'{more}}}", server.url());
    let seen = ask(&server, &connection(&pki, &cluster(""), "{}")).unwrap();
    assert_eq!(seen.header("accept-encoding"), Some("gzip"));
    let seen = ask(
        &server,
        &connection(&pki, &cluster(", disable-compression: true"), "{}"),
    )
    .unwrap();
    assert_eq!(seen.header("accept-encoding"), None);
}

#[test]
fn anything_may_be_checked_without_its_files() {
    assert_eq!(check_kubeconfig(b"", Some("a:1")).unwrap(), "http://a:1");
    let data = "certificate-authority-data: YQ==";
    let text = kubeconfig(&format!("{{server: 'https://a', {data}}}"), "{}");
    let refused = check_kubeconfig(text.as_bytes(), None).unwrap_err();
    assert_eq!(refused.field, "certificates");
    let deep = "[".repeat(100_000);
    assert!(check_kubeconfig(deep.as_bytes(), None).is_err());
}
