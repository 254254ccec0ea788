//! Nothing secret in any log or error, whatever goes wrong.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pki::{P256, Pki};
use crate::server::{Server, connection, get, kubeconfig, status};

/// What must not be seen, in either form in which it is written.
const SECRET: &str = "pl4nted-s3cret";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn encoded() -> String {
    data_encoding::BASE64.encode(SECRET.as_bytes())
}

/// Users and clusters with the secret in every place that may hold one.
fn places(server: &Server) -> Vec<(String, String)> {
    let https = server.url();
    let by_ca = format!("{{server: '{https}', certificate-authority: ca.crt}}");
    let exec = |command: &str, script: &str| {
        format!(
            "{{exec: {{command: {command}, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
             args: ['-c', '{script}', {SECRET}], env: [{{name: KEY, value: {SECRET}}}]}}}}"
        )
    };
    let user = |user: String| (by_ca.clone(), user);
    let url = https.replace("//", &format!("//me:{SECRET}@"));
    vec![
        user(format!("{{token: {SECRET}}}")),
        user(format!("{{token: \"{SECRET}\\n\"}}")),
        user(format!("{{token: [{SECRET}]}}")),
        user(format!(
            "{{token: {SECRET}, username: {SECRET}, password: {SECRET}}}"
        )),
        user(format!("{{username: me, password: {SECRET}}}")),
        user(format!("{{password: {{a: {SECRET}}}}}")),
        user("{tokenFile: secret}".into()),
        user("{tokenFile: broken}".into()),
        user("{client-certificate: ca.crt, client-key: secret}".into()),
        user(format!(
            "{{client-certificate: ca.crt, client-key-data: {}}}",
            encoded()
        )),
        user(format!(
            "{{client-certificate-data: {0}, client-key-data: {0}}}",
            encoded()
        )),
        user(format!("{{client-key-data: '{SECRET}!'}}")),
        user(exec(
            "/bin/sh",
            &format!("echo {SECRET}; echo {SECRET} >&2; exit 7"),
        )),
        user(exec("/bin/sh", &format!("echo {SECRET}"))),
        user(exec("/bin/sh", &format!("sleep 300; echo {SECRET}"))),
        user(exec("/nowhere/plugin", "true")),
        user(exec("[sh]", "true")),
        user(format!("{{exec: {{command: p, args: {SECRET}}}}}")),
        user(format!("{{exec: {{command: p, env: {{{SECRET}: {SECRET}}}}}}}")),
        user(format!(
            "{{auth-provider: {{name: oidc, config: {{id-token: {SECRET}}}}}}}"
        )),
        (
            format!("{{server: '{url}', certificate-authority: ca.crt}}"),
            "{}".into(),
        ),
        (format!("{{server: '{url} x'}}"), "{}".into()),
        (format!("{{server: 'ftp://me:{SECRET}@a'}}"), "{}".into()),
        (
            format!("{{server: 'https://me:{SECRET}@127.0.0.1:1'}}"),
            "{}".into(),
        ),
        (format!("{{server: 'me:{SECRET}@127.0.0.1:1'}}"), "{}".into()),
        (
            format!("{{server: '{https}', proxy-url: 'http://me:{SECRET}@127.0.0.1:1'}}"),
            "{}".into(),
        ),
        (
            format!("{{server: '{https}', proxy-url: 'ftp://me:{SECRET}@127.0.0.1:1'}}"),
            "{}".into(),
        ),
        (
            format!("{{server: '{https}', insecure-skip-tls-verify: true}}"),
            format!("{{token: {SECRET}}}"),
        ),
    ]
}

#[test]
fn nothing_secret_is_ever_shown() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("api", P256, "ca");
    pki.write("secret", SECRET);
    pki.write("broken", format!("{SECRET}\u{1}"));
    let server = Server::tls(&pki, "api");
    let mut said = String::new();
    let places = places(&server);
    let count = places.len();
    for (cluster, user) in places {
        let mut connection = connection(&pki, &cluster, &user);
        connection.timing.plugin_timeout = Duration::from_millis(300);
        match connection.connect() {
            Err(error) => said += &format!("{error}\n{error:?}\n"),
            Ok(api) => {
                said += &format!("{api:?} {}\n", api.server());
                for code in [200, 401, 500] {
                    server.reply(move |_| status(code));
                    if let Err(trouble) = get(&server.runtime, &api, "/api") {
                        said += &format!("{trouble}\n{trouble:?}\n");
                    }
                }
            }
        }
    }
    // Mistakes in the text next to a secret.
    for text in [
        format!("token: {SECRET}\n  bad: [\n"),
        format!("users: [{{user: {{token: {SECRET}, token: {SECRET}}}}}]"),
        SECRET.to_owned(),
        format!("users: {SECRET}"),
        format!("\"{SECRET}"),
        format!("kind: {SECRET}"),
        kubeconfig(&format!("{{insecure-skip-tls-verify: {SECRET}}}"), "{}"),
    ] {
        let connection = ferry_sources::kube::Connection {
            kubeconfig: Some(pki.write("kubeconfig", text)),
            ..Default::default()
        };
        let error = connection.connect().unwrap_err();
        said += &format!("{error}\n{error:?}\n");
    }
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        logged.contains("credential plugin") && said.lines().count() > count,
        "{logged}{said}"
    );
    for (what, text) in [("log", &logged), ("errors", &said)] {
        for secret in [SECRET, &encoded()] {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "in the {what}");
        }
    }
}
