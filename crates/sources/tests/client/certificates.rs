//! Which servers are trusted: what Go's programs accept and refuse.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::pki::{ED25519, NAMES, P256, P384, P521, Pki, RSA_1024, RSA_2048};
use crate::server::{Server, ask, connection};

const AUTHORITY: &str = "basicConstraints=critical,CA:TRUE";

/// Whether a server that presents `name` is trusted by an authority file; with more fields of the cluster if wanted.
fn verdict(pki: &Pki, name: &'static str, authority: &str, more: &str) -> Result<(), String> {
    let server = Server::tls(pki, name);
    let cluster = format!("{{server: '{}', {authority}{more}}}", server.url());
    ask(&server, &connection(pki, &cluster, "{}")).map(drop)
}

fn trusted_by(pki: &Pki, name: &'static str, authority: &str) -> Result<(), String> {
    verdict(pki, name, &format!("certificate-authority: {authority}"), "")
}

#[test]
fn every_kind_of_key_is_accepted() {
    let pki = Pki::new();
    for (ca, key) in [
        ("ca256", P256),
        ("ca384", P384),
        ("ca521", P521),
        ("caed", ED25519),
        ("carsa", RSA_2048),
    ] {
        pki.authority(ca, key);
    }
    for (name, key, by) in [
        ("a", P256, "ca521"),
        ("b", P521, "ca256"),
        ("c", P384, "carsa"),
        ("d", ED25519, "ca384"),
        ("e", RSA_2048, "caed"),
        ("f", P521, "ca521"),
    ] {
        pki.server(name, key, by);
        trusted_by(&pki, name, &format!("{by}.crt"))
            .unwrap_or_else(|error| panic!("{name} by {by}: {error}"));
        let error =
            trusted_by(&pki, name, if by == "ca256" { "ca521.crt" } else { "ca256.crt" }).unwrap_err();
        assert!(error.contains("unknown authority"), "{name}: {error}");
    }
}

#[test]
fn a_server_may_be_its_own_authority() {
    let pki = Pki::new();
    pki.self_signed("whole", P256, &[AUTHORITY, NAMES]);
    trusted_by(&pki, "whole", "whole.crt").unwrap();
    pki.self_signed("plain", P256, &[NAMES]);
    trusted_by(&pki, "plain", "plain.crt").unwrap();
    pki.authority("ca", P256);
    pki.server("leaf", P256, "ca");
    trusted_by(&pki, "leaf", "leaf.crt").unwrap();
    // But it vouches for nobody else.
    pki.signed("child", P256, "leaf", &[NAMES], "30");
    let error = trusted_by(&pki, "child", "leaf.crt").unwrap_err();
    assert!(error.contains("does not let it sign"), "{error}");
    // Another key of the same name is another certificate.
    pki.self_signed("plain", P256, &[NAMES]);
    pki.write("old.crt", pki.read("plain.crt"));
    pki.self_signed("plain", P256, &[NAMES]);
    let error = trusted_by(&pki, "plain", "old.crt").unwrap_err();
    assert!(error.contains("TLS with 127.0.0.1"), "{error}");
}

#[test]
fn chains_are_followed_to_the_authority() {
    let pki = Pki::new();
    pki.authority("root", P256);
    pki.signed("middle", P256, "root", &[AUTHORITY, "keyUsage=keyCertSign"], "30");
    pki.server("leaf", P256, "middle");
    let error = trusted_by(&pki, "leaf", "root.crt").unwrap_err();
    assert!(error.contains("unknown authority"), "{error}");
    // The middle is sent along, or trusted itself.
    trusted_by(&pki, "leaf", "middle.crt").unwrap();
    pki.write("full.crt", pki.read("leaf.crt") + &pki.read("middle.crt"));
    pki.write("full.key", pki.read("leaf.key"));
    trusted_by(&pki, "full", "root.crt").unwrap();
    pki.signed(
        "short",
        P256,
        "root",
        &["basicConstraints=CA:TRUE,pathlen:0"],
        "30",
    );
    pki.signed("below", P256, "short", &[AUTHORITY], "30");
    pki.server("deep", P256, "below");
    pki.write(
        "deep.crt",
        pki.read("deep.crt") + &pki.read("below.crt") + &pki.read("short.crt"),
    );
    let error = trusted_by(&pki, "deep", "root.crt").unwrap_err();
    assert!(error.contains("longer than one of them allows"), "{error}");
    pki.signed("fake", P256, "root", &["basicConstraints=CA:FALSE"], "30");
    pki.server("under", P256, "fake");
    pki.write("under.crt", pki.read("under.crt") + &pki.read("fake.crt"));
    let error = trusted_by(&pki, "under", "root.crt").unwrap_err();
    assert!(error.contains("does not let it sign"), "{error}");
}

#[test]
fn extensions_are_judged_as_in_go() {
    let pki = Pki::new();
    pki.authority("ca", P256);
    for (name, extensions, refusal) in [
        ("a", &[NAMES, "certificatePolicies=critical,1.2.3.4"][..], None),
        ("b", &[NAMES, "1.2.3.4=critical,DER:0500"], Some("critical")),
        ("c", &[NAMES, "1.2.3.4=DER:0500"], None),
        (
            "d",
            &[NAMES, "extendedKeyUsage=clientAuth"],
            Some("not meant for servers"),
        ),
        ("e", &[NAMES, "extendedKeyUsage=serverAuth"], None),
        ("f", &[NAMES, "extendedKeyUsage=anyExtendedKeyUsage"], None),
        (
            "g",
            &["subjectAltName=DNS:elsewhere"],
            Some("it is for elsewhere, not for 127.0.0.1"),
        ),
        (
            "h",
            &["basicConstraints=CA:FALSE"],
            Some("it is for no name at all"),
        ),
        ("i", &["subjectAltName=IP:127.0.0.1,email:a@b"], None),
        (
            "j",
            &[NAMES, "policyConstraints=critical,requireExplicitPolicy:0"],
            Some("critical"),
        ),
    ] {
        pki.signed(name, P256, "ca", extensions, "30");
        let found = trusted_by(&pki, name, "ca.crt");
        match (refusal, found) {
            (None, found) => found.unwrap_or_else(|error| panic!("{name}: {error}")),
            (Some(reason), Ok(())) => panic!("{name} is trusted, though {reason}"),
            (Some(reason), Err(error)) => assert!(error.contains(reason), "{name}: {error}"),
        }
    }
}

#[test]
fn an_authority_vouches_for_the_names_that_it_may() {
    let pki = Pki::new();
    let names = |constraint: &str| format!("nameConstraints=critical,{constraint}");
    for (name, constraint, allowed) in [
        (
            "a",
            "permitted;IP:127.0.0.0/255.0.0.0,permitted;DNS:localhost,permitted;DNS:test",
            true,
        ),
        ("b", "permitted;IP:10.0.0.0/255.0.0.0", false),
        ("c", "excluded;IP:127.0.0.1/255.255.255.255", false),
        ("d", "excluded;DNS:api.test", false),
        ("e", "permitted;DNS:localhost", false),
        ("f", "excluded;DNS:elsewhere", true),
    ] {
        let ca: &'static str = Box::leak(format!("{name}-ca").into_boxed_str());
        pki.self_signed(ca, P256, &[AUTHORITY, &names(constraint)]);
        pki.server(name, P256, ca);
        let found = trusted_by(&pki, name, &format!("{ca}.crt"));
        assert_eq!(found.is_ok(), allowed, "{constraint}: {found:?}");
        if let Err(error) = found {
            assert!(error.contains("may not vouch for this name"), "{error}");
        }
    }
}

#[test]
fn time_counts() {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.signed("over", P256, "ca", &[NAMES], "-1");
    let error = trusted_by(&pki, "over", "ca.crt").unwrap_err();
    assert!(error.contains("has expired"), "{error}");
    assert!(
        trusted_by(&pki, "over", "over.crt").is_err(),
        "not even where it is trusted by itself"
    );
}

#[test]
fn a_bundle_may_hold_what_cannot_be_read() {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.server("leaf", P256, "ca");
    let bad = "-----BEGIN CERTIFICATE-----\nMIIBhTCC\n-----END CERTIFICATE-----\n";
    let worse = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    pki.write(
        "bundle.crt",
        format!("# ours\n{bad}{worse}{}{bad}", pki.read("ca.crt")),
    );
    trusted_by(&pki, "leaf", "bundle.crt").unwrap();
    for (text, name) in [(bad, "bad.crt"), ("", "empty.crt"), ("junk", "junk.crt")] {
        pki.write(name, text);
        let error = trusted_by(&pki, "leaf", name).unwrap_err();
        assert!(
            error.contains(name) && error.contains("no certificate that can be read"),
            "{error}"
        );
    }
}

#[test]
fn the_name_can_be_given_and_the_check_left_out() {
    let pki = Pki::new();
    pki.authority("ca", P256);
    pki.signed("named", P256, "ca", &["subjectAltName=DNS:api.test"], "30");
    let by_ca = "certificate-authority: ca.crt";
    assert!(verdict(&pki, "named", by_ca, "").is_err());
    verdict(&pki, "named", by_ca, ", tls-server-name: api.test").unwrap();
    let error = verdict(&pki, "named", by_ca, ", tls-server-name: other.test").unwrap_err();
    assert!(
        error.contains("it is for api.test, not for other.test"),
        "{error}"
    );
    verdict(&pki, "named", "insecure-skip-tls-verify: true", "").unwrap();
    let error = verdict(&pki, "named", "insecure-skip-tls-verify: false", "").unwrap_err();
    assert!(
        error.contains("unknown authority") || error.contains("not for this host"),
        "{error}"
    );
}

/// openssl's own server, for keys that no library of ours makes a server with.
struct OpensslServer(Child, u16);

impl OpensslServer {
    fn start(pki: &Pki, name: &str, more: &[&str]) -> Self {
        let mut child = Command::new("openssl")
            .args(["s_server", "-www", "-accept", "127.0.0.1:0"])
            .args(["-cert", &format!("{name}.crt"), "-key", &format!("{name}.key")])
            .args(more)
            .current_dir(pki.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .map(Result::unwrap)
            .find(|line| line.starts_with("ACCEPT "))
            .unwrap();
        let port = line.rsplit(':').next().unwrap().trim().parse().unwrap();
        OpensslServer(child, port)
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn short_rsa_keys_are_accepted_in_both_versions_of_tls() {
    let pki = Pki::new();
    pki.authority("ca", RSA_1024);
    pki.server("leaf", RSA_1024, "ca");
    pki.self_signed("pss", P256, &[AUTHORITY]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for version in ["-tls1_2", "-tls1_3"] {
        let server = OpensslServer::start(&pki, "leaf", &[version, "-cipher", "ALL:@SECLEVEL=0"]);
        let cluster = |ca: &str| {
            format!(
                "{{server: 'https://127.0.0.1:{}', certificate-authority: {ca}}}",
                server.1
            )
        };
        let api = connection(&pki, &cluster("ca.crt"), "{}").connect().unwrap();
        let answer =
            crate::server::get(&runtime, &api, "/").unwrap_or_else(|error| panic!("{version}: {error}"));
        assert!(!answer.is_empty());
        let api = connection(&pki, &cluster("pss.crt"), "{}").connect().unwrap();
        assert!(crate::server::get(&runtime, &api, "/").is_err());
    }
}
