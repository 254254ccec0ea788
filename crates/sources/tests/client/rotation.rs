//! Files that are replaced while we run.

use std::time::Duration;

use ferry_lab::wait_until;

use crate::pki::{P256, Pki};
use crate::server::{Server, connection, get, quick};

fn secure() -> (Pki, Server, String) {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("api", P256, "ca");
    let server = Server::tls(&pki, "api");
    let cluster = format!("{{server: '{}', certificate-authority: ca.crt}}", server.url());
    (pki, server, cluster)
}

#[test]
fn a_token_that_is_replaced_is_used_from_the_next_request_on() {
    let (pki, server, cluster) = secure();
    pki.write("token", "one\n");
    let api = connection(&pki, &cluster, "{tokenFile: token}")
        .connect()
        .unwrap();
    let bearer = || server.last().header("authorization").map(str::to_owned);
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(bearer().as_deref(), Some("Bearer one"));
    pki.write("token", "two\n");
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(bearer().as_deref(), Some("Bearer two"));
    for bad in ["", " \n", "a\u{1}b"] {
        pki.write("token", bad);
        get(&server.runtime, &api, "/version").unwrap();
        assert_eq!(bearer().as_deref(), Some("Bearer two"), "{bad:?} is no token");
    }
    std::fs::remove_file(pki.path("token")).unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(bearer().as_deref(), Some("Bearer two"));
}

#[test]
fn a_token_that_is_refused_is_read_again_at_once() {
    let (pki, server, cluster) = secure();
    let token = pki.write("token", "old");
    let api = connection(&pki, &cluster, "{tokenFile: token}")
        .connect()
        .unwrap();
    server.reply(move |_| {
        std::fs::write(&token, "new").unwrap();
        crate::server::status(401)
    });
    get(&server.runtime, &api, "/version").unwrap();
    let seen: Vec<_> = server
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(seen, ["Bearer old", "Bearer new"]);
    // The same token again is not worth another try.
    server.refuse_once();
    let error = get(&server.runtime, &api, "/version").unwrap_err().to_string();
    assert!(error.contains("answered 401"), "{error}");
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn a_client_certificate_that_is_replaced_is_presented_soon() {
    let (pki, server, cluster) = secure();
    for name in ["old", "new", "newer"] {
        pki.client(name, P256, "ca");
    }
    let install = |name: &str| {
        for end in ["crt", "key"] {
            std::fs::copy(pki.path(&format!("{name}.{end}")), pki.path(&format!("me.{end}"))).unwrap();
        }
    };
    let presented = |name: &str| {
        let der = server.last().certificate.unwrap();
        pki.read(&format!("{name}.crt"))
            .replace('\n', "")
            .contains(&data_encoding::BASE64.encode(&der))
    };
    install("old");
    let mut connection = connection(&pki, &cluster, "{client-certificate: me.crt, client-key: me.key}");
    connection.timing = quick();
    let api = connection.connect().unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    assert!(presented("old"));
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(server.connections(), 1, "what has not changed stays");
    // Half of it is not used.
    std::fs::copy(pki.path("new.crt"), pki.path("me.crt")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    get(&server.runtime, &api, "/version").unwrap();
    assert!(presented("old") && server.connections() == 1);
    install("new");
    let soon = wait_until(Duration::from_secs(30), || {
        get(&server.runtime, &api, "/version").unwrap();
        presented("new")
    });
    assert!(soon);
    assert_eq!(server.connections(), 2);

    // A server that refuses the old one gets the new one at once.
    connection.timing.reload_interval = Duration::from_secs(600);
    let api = connection.connect().unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    install("newer");
    server.refuse_once();
    get(&server.runtime, &api, "/version").unwrap();
    assert!(presented("newer"));
}

#[test]
fn an_authority_that_is_replaced_is_trusted_at_the_next_connection() {
    let (pki, server, cluster) = secure();
    let mut connection = connection(&pki, &cluster, "{}");
    connection.timing = quick();
    let api = connection.connect().unwrap();
    get(&server.runtime, &api, "/version").unwrap();
    let old = pki.read("ca.crt");
    pki.authority("next", P256);
    pki.server("renewed", P256, "next");
    server.present(&pki, "renewed");
    pki.write("ca.crt", format!("{old}{}", pki.read("next.crt")));
    let moved = wait_until(Duration::from_secs(30), || {
        get(&server.runtime, &api, "/version").unwrap();
        server.connections() == 2
    });
    assert!(moved, "the old connection is used on");
    // What cannot be read changes nothing.
    pki.write("ca.crt", "half a certi");
    std::thread::sleep(Duration::from_millis(300));
    get(&server.runtime, &api, "/version").unwrap();
    assert_eq!(server.connections(), 2);
}
