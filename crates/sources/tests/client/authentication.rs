//! Who the server takes us for.

use std::time::Duration;

use crate::pki::{P256, P521, Pki, RSA_2048};
use crate::server::{Server, ask, connection, get, kubeconfig};
use ferry_sources::kube::Connection;

fn secure() -> (Pki, Server) {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("api", P256, "ca");
    let server = Server::tls(&pki, "api");
    (pki, server)
}

fn cluster(server: &Server) -> String {
    format!("{{server: '{}', certificate-authority: ca.crt}}", server.url())
}

#[test]
fn each_way_to_authenticate_is_sent_as_client_go_sends_it() {
    let (pki, server) = secure();
    pki.write("token", "of-file\n");
    pki.write("padded", "\n  of-file \r\n\n");
    for (user, expected) in [
        ("{}", None),
        ("{token: inline}", Some("Bearer inline")),
        ("{tokenFile: token}", Some("Bearer of-file")),
        ("{tokenFile: padded}", Some("Bearer of-file")),
        ("{token: inline, tokenFile: token}", Some("Bearer of-file")),
        ("{token: inline, tokenFile: missing}", Some("Bearer inline")),
        ("{username: me, password: pass}", Some("Basic bWU6cGFzcw==")),
        ("{username: me}", Some("Basic bWU6")),
        ("{password: pass}", None),
        (
            "{token: inline, exec: {command: /nowhere, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}",
            Some("Bearer inline"),
        ),
        ("null", None),
    ] {
        let seen = ask(&server, &connection(&pki, &cluster(&server), user))
            .unwrap_or_else(|e| panic!("{user}: {e}"));
        assert_eq!(seen.header("authorization"), expected, "{user}");
        assert_eq!(seen.header("user-agent"), Some("test/1"));
    }
}

#[test]
fn the_users_of_a_url_are_sent_to_nobody_but_the_server() {
    let (pki, server) = secure();
    let url = server.url().replace("https://", "https://me:pass@");
    let cluster = format!("{{server: '{url}', certificate-authority: ca.crt}}");
    let seen = ask(&server, &connection(&pki, &cluster, "{}")).unwrap();
    assert_eq!(seen.header("authorization"), Some("Basic bWU6cGFzcw=="));
    let seen = ask(&server, &connection(&pki, &cluster, "{token: mine}")).unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer mine"));
}

#[test]
fn nothing_secret_is_sent_in_clear() {
    let pki = Pki::new();
    pki.write("token", "s3cret");
    let server = Server::clear(&pki);
    let mark = pki.path("ran");
    let exec = format!(
        "{{exec: {{command: touch, args: ['{}'], apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}}}",
        mark.display()
    );
    for url in [
        server.url(),
        server.url().replace("http://", ""),
        server.url().replace("//", "//me:s3cret@"),
    ] {
        for user in [
            "{token: s3cret}",
            "{tokenFile: token}",
            "{tokenFile: missing}",
            "{username: me, password: s3cret}",
            "{client-certificate-data: czNjcmV0, client-key-data: czNjcmV0}",
            "{auth-provider: {name: oidc}}",
            &exec,
        ] {
            let cluster = format!("{{server: '{url}'}}");
            let seen =
                ask(&server, &connection(&pki, &cluster, user)).unwrap_or_else(|e| panic!("{user}: {e}"));
            assert!(
                !format!("{:?}", seen.headers).contains("s3cret"),
                "{user}: {:?}",
                seen.headers
            );
            assert_eq!(seen.header("authorization"), None, "{user}");
        }
    }
    assert!(!mark.exists(), "a plugin ran");
}

#[test]
fn impersonation_is_asked_for_in_headers() {
    let (pki, server) = secure();
    let user = "{as: jane, as-uid: '7', as-groups: [a, b], as-user-extra: {'Scope/x': [one, two]}}";
    let seen = ask(&server, &connection(&pki, &cluster(&server), user)).unwrap();
    assert_eq!(seen.header("impersonate-user"), Some("jane"));
    assert_eq!(seen.header("impersonate-uid"), Some("7"));
    let groups: Vec<_> = seen.headers.get_all("impersonate-group").iter().collect();
    assert_eq!(groups, ["a", "b"]);
    let extra: Vec<_> = seen
        .headers
        .get_all("impersonate-extra-scope%2Fx".to_lowercase())
        .iter()
        .collect();
    assert_eq!(extra, ["one", "two"], "{:?}", seen.headers);
}

#[test]
fn client_certificates_of_every_kind_are_presented() {
    let (pki, server) = secure();
    for (name, key) in [("p256", P256), ("p521", P521), ("rsa", RSA_2048)] {
        pki.client(name, key, "ca");
        let user = format!("{{client-certificate: {name}.crt, client-key: {name}.key}}");
        let seen = ask(&server, &connection(&pki, &cluster(&server), &user))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let presented = seen
            .certificate
            .unwrap_or_else(|| panic!("{name}: no certificate"));
        let written = data_encoding::BASE64.encode(&presented);
        let file = pki.read(&format!("{name}.crt")).replace('\n', "");
        assert!(file.contains(&written), "{name}");
        // The same, written into the kubeconfig.
        let data = |file: String| data_encoding::BASE64.encode(pki.read(&file).as_bytes());
        let user = format!(
            "{{client-certificate-data: {}, client-key-data: {}}}",
            data(format!("{name}.crt")),
            data(format!("{name}.key"))
        );
        let seen = ask(&server, &connection(&pki, &cluster(&server), &user)).unwrap();
        assert_eq!(seen.certificate, Some(presented), "{name}");
    }
    pki.client("other", P256, "ca");
    let mixed = connection(
        &pki,
        &cluster(&server),
        "{client-certificate: p256.crt, client-key: other.key}",
    );
    let error = mixed.connect().unwrap_err().to_string();
    assert!(
        error.contains("p256.crt") && error.contains("belongs to another certificate"),
        "{error}"
    );
}

/// A plugin that answers with what stands in a file and notes each run.
fn plugin(pki: &Pki) -> String {
    let script = pki.write(
        "plugin.sh",
        format!(
            "#!/bin/sh\ncd '{}'\necho run >> runs\ncat answer\n",
            pki.directory().display()
        ),
    );
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    "{exec: {command: ./plugin.sh, apiVersion: client.authentication.k8s.io/v1beta1}}".into()
}

fn issue(pki: &Pki, status: &serde_json::Value) {
    let answer = serde_json::json!({
        "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": status,
    });
    pki.write("answer", answer.to_string());
}

fn runs(pki: &Pki) -> usize {
    std::fs::read_to_string(pki.path("runs"))
        .unwrap_or_default()
        .lines()
        .count()
}

#[test]
fn a_plugin_is_run_when_needed_and_when_its_token_is_refused() {
    let (pki, server) = secure();
    let api = connection(&pki, &cluster(&server), &plugin(&pki))
        .connect()
        .unwrap();
    assert_eq!(runs(&pki), 0, "not at the start");
    let bearer = || server.last().header("authorization").map(str::to_owned);
    issue(&pki, &serde_json::json!({"token": "first"}));
    get(&server.runtime, &api, "/version").unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!((bearer().as_deref(), runs(&pki)), (Some("Bearer first"), 1));
    issue(
        &pki,
        &serde_json::json!({"token": "second", "expirationTimestamp": "2020-01-01T00:00:00Z"}),
    );
    server.refuse_once();
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(
        (bearer().as_deref(), runs(&pki)),
        (Some("Bearer second"), 2),
        "refused"
    );
    issue(
        &pki,
        &serde_json::json!({"token": "third", "expirationTimestamp": "2999-01-01T00:00:00Z"}),
    );
    get(&server.runtime, &api, "/version").unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(
        (bearer().as_deref(), runs(&pki)),
        (Some("Bearer third"), 3),
        "expired"
    );
    assert_eq!(api.requests().plugin_use().successes, 3);
}

#[test]
fn a_plugin_may_issue_certificates() {
    let (pki, server) = secure();
    pki.client("first", P256, "ca");
    pki.client("second", P256, "ca");
    let pair = |name: &str| {
        serde_json::json!({
            "clientCertificateData": pki.read(&format!("{name}.crt")),
            "clientKeyData": pki.read(&format!("{name}.key")),
        })
    };
    issue(&pki, &pair("first"));
    let api = connection(&pki, &cluster(&server), &plugin(&pki))
        .connect()
        .unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    let first = server.last();
    assert!(first.certificate.is_some());
    issue(&pki, &pair("second"));
    server.refuse_once();
    get(&server.runtime, &api, "/version").unwrap();
    let second = server.last();
    assert!(second.certificate.is_some() && second.certificate != first.certificate);
    assert_ne!(
        second.connection, first.connection,
        "the old connection has the old certificate"
    );
    let expires = api.requests().plugin_use().certificate_expires.unwrap();
    let left = expires.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(29 * 24 * 3600), "{left:?}");
}

#[test]
fn a_plugin_that_hangs_holds_up_requests_and_nothing_else() {
    let (pki, server) = secure();
    let user = "{exec: {command: sleep, args: ['300'], apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}";
    let mut hanging = connection(&pki, &cluster(&server), user);
    hanging.timing.plugin_timeout = Duration::from_millis(300);
    let start = std::time::Instant::now();
    let api = hanging.connect().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the start waits for it"
    );
    let error = get(&server.runtime, &api, "/version").unwrap_err().to_string();
    assert!(
        error.contains("the credential plugin sleep did not answer within 0.3 s"),
        "{error}"
    );
}

#[test]
fn without_anything_given_a_pod_is_needed() {
    let error = Connection::default().connect().unwrap_err().to_string();
    assert!(
        error.starts_with("neither a kubeconfig nor a master URL is given"),
        "{error}"
    );
    assert!(error.contains("KUBERNETES_SERVICE_HOST is not set"), "{error}");
    let empty = Pki::new();
    let none = Connection {
        kubeconfig: Some(empty.write("kubeconfig", kubeconfig("{}", "{}"))),
        ..Connection::default()
    };
    assert!(
        none.connect()
            .unwrap_err()
            .to_string()
            .contains("no server is given")
    );
}
