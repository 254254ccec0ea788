//! From options to a client: kubeconfigs good and bad, `--master`, tokens, and what a request looks like.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_sources::kube::{Api, ConnectError, Connection, KubeSource};
use ferry_sources::{Kind, Mailbox};
use tempfile::TempDir;

fn connect(connection: &Connection) -> Result<Api, ConnectError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(connection.connect())
}

fn kubeconfig(directory: &TempDir, cluster: &str, user: &str) -> PathBuf {
    let path = directory.path().join("kubeconfig.conf");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters:\n- name: default\n  cluster: {cluster}\n\
         contexts:\n- name: default\n  context: {{cluster: default, namespace: default, user: default}}\n\
         users:\n- name: default\n  user: {user}\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_server_comes_from_the_kubeconfig_or_the_master() {
    let directory = tempfile::tempdir().unwrap();
    let path = kubeconfig(&directory, "{server: 'http://192.0.2.1:8080'}", "{}");
    let server = |kubeconfig: Option<PathBuf>, master: Option<&str>| {
        let master = master.map(str::to_owned);
        connect(&Connection {
            kubeconfig,
            master,
            ..Connection::default()
        })
        .unwrap()
        .server()
        .to_owned()
    };
    assert_eq!(server(Some(path.clone()), None), "http://192.0.2.1:8080");
    assert_eq!(
        server(Some(path), Some("https://192.0.2.2:6443")),
        "https://192.0.2.2:6443"
    );
    assert_eq!(
        server(None, Some("http://192.0.2.3:8001/")),
        "http://192.0.2.3:8001"
    );
    assert_eq!(server(None, Some("192.0.2.3:8001")), "http://192.0.2.3:8001");
    let serverless = kubeconfig(&directory, "{}", "{}");
    assert_eq!(
        server(Some(serverless), Some("https://192.0.2.2:6443")),
        "https://192.0.2.2:6443"
    );
}

#[test]
fn what_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = |connection: Connection| connect(&connection).unwrap_err().to_string();
    let from = |path: PathBuf| Connection {
        kubeconfig: Some(path),
        ..Connection::default()
    };

    let missing = error(from("/nowhere/kubeconfig".into()));
    assert!(
        missing.starts_with("cannot use kubeconfig /nowhere/kubeconfig: "),
        "{missing}"
    );
    assert!(missing.contains("No such file or directory"), "{missing}");

    let path = directory.path().join("broken");
    std::fs::write(&path, "clusters: [\n").unwrap();
    let broken = error(from(path.clone()));
    assert!(broken.contains(&path.display().to_string()), "{broken}");

    let serverless = error(from(kubeconfig(&directory, "{}", "{}")));
    assert!(serverless.contains("cluster url is missing"), "{serverless}");

    let proxy = error(from(kubeconfig(
        &directory,
        "{server: 'http://192.0.2.1', proxy-url: '::'}",
        "{}",
    )));
    assert!(proxy.starts_with("proxy-url \"::\" is not a URL"), "{proxy}");

    let master = error(Connection {
        master: Some("http://".into()),
        ..Connection::default()
    });
    assert!(master.starts_with("master \"http://\" is not a URL"), "{master}");

    // Tests do not run in a pod.
    let nothing = error(Connection::default());
    assert!(
        nothing.starts_with("neither a kubeconfig nor a master URL is given"),
        "{nothing}"
    );
}

#[test]
fn requests_carry_the_token_of_the_file_and_our_name() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "s3cret").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = format!("{{server: 'http://{}'}}", listener.local_addr().unwrap());
    let path = kubeconfig(&directory, &cluster, "{tokenFile: token}");
    let connection = Connection {
        kubeconfig: Some(path),
        user_agent: "ferry/v0.1.0 (linux/amd64) kubernetes/v1.36.4".into(),
        ..Connection::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let api = runtime.block_on(connection.connect()).unwrap();
    let requests = api.requests().clone();
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    runtime.spawn(KubeSource::new(api, "node-a").run(mailbox));

    let (stream, _) = listener.accept().unwrap();
    let mut head = Vec::new();
    for line in BufReader::new(&stream).lines() {
        let line = line.unwrap().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    for expected in [
        "authorization: bearer s3cret",
        "user-agent: ferry/v0.1.0 (linux/amd64) kubernetes/v1.36.4",
        "accept: application/json",
    ] {
        assert!(head.iter().any(|line| line == expected), "{head:#?}");
    }
    (&stream)
        .write_all(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nretry-after: 30\r\n\r\n")
        .unwrap();
    let counted = ferry_lab::wait_until(Duration::from_secs(20), || {
        requests
            .counts()
            .iter()
            .any(|count| (count.method.as_str(), count.code.as_str()) == ("GET", "503"))
    });
    assert!(counted, "{:?}", requests.counts());
}

#[test]
fn tls_clients_are_built() {
    // A certificate authority that nothing was ever signed with; made for this test with openssl.
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.crt");
    std::fs::write(&authority, include_str!("data/ca.crt")).unwrap();
    let path = kubeconfig(
        &directory,
        "{server: 'https://192.0.2.1:6443', certificate-authority: ca.crt}",
        "{token: t}",
    );
    let api = connect(&Connection {
        kubeconfig: Some(path),
        ..Connection::default()
    })
    .unwrap();
    assert_eq!(api.server(), "https://192.0.2.1:6443");
    std::fs::write(&authority, "not a certificate").unwrap();
    let path = kubeconfig(
        &directory,
        "{server: 'https://192.0.2.1:6443', certificate-authority: ca.crt}",
        "{}",
    );
    let master = Some("192.0.2.2:6443".to_owned());
    let error = connect(&Connection {
        kubeconfig: Some(path),
        master,
        ..Connection::default()
    });
    assert!(error.is_err(), "{error:?}");
}
