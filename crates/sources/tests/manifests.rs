//! The manifests source on real directories with real inotify.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_lab::patience;
use ferry_model::{ServiceName, Snapshot};
use ferry_sources::manifests::{ManifestError, ManifestSource, load};
use ferry_sources::{Kind, Mailbox};
use tempfile::TempDir;

struct Rig {
    directory: TempDir,
    mailbox: Arc<Mailbox>,
    snapshot: Snapshot,
    source: Option<ManifestSource>,
}

impl Rig {
    /// A directory with these files, not followed yet.
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("manifests")).unwrap();
        let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
        let rig = Rig {
            directory,
            mailbox,
            snapshot: Snapshot::default(),
            source: None,
        };
        for (name, text) in files {
            rig.write(name, text);
        }
        rig
    }

    fn following(files: &[(&str, &str)]) -> Self {
        let mut rig = Rig::new(files);
        rig.start();
        rig
    }

    fn start(&mut self) {
        self.source = Some(ManifestSource::start(&self.path(""), "node-a", self.mailbox.clone()).unwrap());
        assert!(self.mailbox.is_open());
        self.take();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("manifests").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// As a careful writer does it.
    fn replace(&self, name: &str, text: &str) {
        let beside = self.path(".new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.path(name)).unwrap();
    }

    fn take(&mut self) {
        for event in self.mailbox.take().events {
            self.snapshot.apply(event);
        }
    }

    fn until(&mut self, what: &str, mut yes: impl FnMut(&Rig) -> bool) {
        let end = Instant::now() + patience(Duration::from_secs(20));
        loop {
            self.take();
            if yes(self) {
                return;
            }
            let (services, problems) = (self.services(), self.mailbox.problems());
            assert!(
                Instant::now() < end,
                "not {what}; services {services:?}, problems {problems:?}"
            );
            self.mailbox
                .wait(Some(Instant::now() + Duration::from_millis(20)));
        }
    }

    fn until_services(&mut self, expected: &[&str]) {
        self.until(&format!("services {expected:?}"), |rig| {
            rig.services() == expected
        });
    }

    fn services(&self) -> Vec<String> {
        let show = |address: &std::net::IpAddr| address.to_string();
        let services = self.snapshot.services();
        services
            .map(|s| {
                format!(
                    "{} {}",
                    s.name,
                    s.cluster_ips.first().map_or_else(String::new, show)
                )
            })
            .collect()
    }

    fn endpoints(&self, service: &str) -> Vec<String> {
        let service = ServiceName::new("default", service);
        let slices = self.snapshot.slices(&service);
        slices
            .flat_map(|slice| &slice.endpoints)
            .map(|endpoint| endpoint.address.to_string())
            .collect()
    }

    fn problems(&self) -> Vec<String> {
        let short = |about: &str| {
            Path::new(about)
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        };
        self.mailbox
            .problems()
            .iter()
            .map(|p| format!("{}: {}", short(&p.about), p.reason))
            .collect()
    }

    fn skipped(&self) -> Vec<String> {
        self.mailbox.skipped().iter().map(ToString::to_string).collect()
    }
}

fn service(name: &str, cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: {cluster_ip}\n  \
         ports:\n  - port: 80\n"
    )
}

fn slice(name: &str, service: &str, address: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata:\n  name: {name}\n  \
         labels: {{kubernetes.io/service-name: {service}}}\nports: [{{name: '', port: 8080}}]\n\
         endpoints: [{{addresses: ['{address}']}}]\n"
    )
}

const EVERYTHING: &str = r#"
# A comment, an empty document, and all kinds.
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web}
  spec: {replicas: 3, ports: nonsense}
---
apiVersion: v1
kind: Endpoints
metadata: {name: old}
subsets: [{addresses: [{ip: 10.1.0.1}, {ip: fd00::1}], ports: [{port: 8080}]}]
---
apiVersion: v1
kind: NodeList
items:
- metadata: {name: node-b}
  status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
- metadata: {name: node-a, labels: {topology.kubernetes.io/zone: z}}
  status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
"#;

#[test]
fn all_kinds_are_read_and_others_are_left_alone() {
    let json = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},
        "spec":{"clusterIP":"10.96.0.2","ports":[{"port":80}]}}
        {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"items":"[]"}}"#;
    let files = [
        ("all.yaml", EVERYTHING),
        ("a.json", json),
        ("notes.txt", "ignored: ["),
        (".b.yaml", "["),
    ];
    let mut rig = Rig::new(&files);
    fs::create_dir(rig.path("sub.yaml")).unwrap();
    load(&rig.path(""), "node-a", &rig.mailbox).unwrap();
    rig.take();
    assert_eq!(rig.services(), ["default/a 10.96.0.2", "shop/web 10.96.0.1"]);
    assert_eq!(rig.endpoints("old"), ["10.1.0.1", "fd00::1"]);
    let node = rig.snapshot.node().expect("our node");
    assert_eq!(
        (node.addresses[0].to_string().as_str(), node.zone.as_deref()),
        ("192.0.2.1", Some("z"))
    );
    assert_eq!(rig.snapshot.service_cidrs().len(), 1);
    assert!(rig.problems().is_empty() && rig.skipped().is_empty());
}

#[test]
fn changes_of_every_sort_are_followed() {
    let mut rig = Rig::following(&[("a.yaml", &service("a", "10.96.0.1"))]);
    assert_eq!(rig.services(), ["default/a 10.96.0.1"]);
    rig.write("a.yaml", &service("a", "10.96.0.2"));
    rig.until_services(&["default/a 10.96.0.2"]);
    rig.replace("a.yaml", &service("a", "10.96.0.3"));
    rig.until_services(&["default/a 10.96.0.3"]);
    rig.write(
        "b.yml",
        &(service("b", "10.96.0.4") + "---\n" + &service("c", "10.96.0.5")),
    );
    rig.until_services(&[
        "default/a 10.96.0.3",
        "default/b 10.96.0.4",
        "default/c 10.96.0.5",
    ]);
    rig.replace("b.yml", &service("c", "10.96.0.5"));
    rig.until_services(&["default/a 10.96.0.3", "default/c 10.96.0.5"]);
    fs::remove_file(rig.path("a.yaml")).unwrap();
    rig.until_services(&["default/c 10.96.0.5"]);
    fs::rename(rig.path("b.yml"), rig.path("b.off")).unwrap();
    rig.until_services(&[]);
}

#[test]
fn a_broken_file_is_named_and_its_last_good_content_stays() {
    let mut rig = Rig::following(&[("a.yaml", &service("a", "10.96.0.1")), ("b.yaml", "kind: [\n\nx")]);
    assert_eq!(rig.services(), ["default/a 10.96.0.1"]);
    let problems = rig.problems();
    assert!(
        problems.len() == 1 && problems[0] == "b.yaml: line 1: unclosed bracket '['",
        "{problems:?}"
    );

    rig.write(
        "a.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.9, {\n",
    );
    rig.write("b.yaml", &service("b", "10.96.0.2"));
    rig.until_services(&["default/a 10.96.0.1", "default/b 10.96.0.2"]);
    rig.until("the problem of a", |rig| {
        rig.problems()
            .iter()
            .all(|problem| problem.starts_with("a.yaml: line "))
    });
    assert_eq!(rig.problems().len(), 1);

    rig.write("a.yaml", &service("a", "10.96.0.3"));
    rig.until_services(&["default/a 10.96.0.3", "default/b 10.96.0.2"]);
    assert!(rig.problems().is_empty());

    rig.write("b.yaml", "[");
    rig.until("a problem", |rig| !rig.problems().is_empty());
    fs::remove_file(rig.path("b.yaml")).unwrap();
    rig.until_services(&["default/a 10.96.0.3"]);
    assert!(rig.problems().is_empty(), "a file that is gone is no problem");
}

#[test]
fn documents_that_are_no_objects_break_their_file() {
    let mut rig = Rig::new(&[
        ("a.yaml", "just text"),
        ("b.yaml", &(service("b", "10.96.0.1") + "---\nspec: {}\n")),
        ("c.yaml", "kind: List\napiVersion: v1\nitems: [{kind: Service}]"),
        ("d.json", "{\"kind\": \"Service\",\n oops}"),
        ("e.yaml", "a: 1\na: 2\n"),
        ("good.yaml", &service("good", "10.96.0.2")),
    ]);
    symlink("nowhere", rig.path("f.yaml")).unwrap();
    rig.start();
    assert_eq!(rig.services(), ["default/good 10.96.0.2"]);
    let problems = rig.problems();
    assert_eq!(problems.len(), 6, "{problems:#?}");
    for (problem, expected) in problems.iter().zip([
        "a.yaml: document 1: is no Kubernetes object",
        "b.yaml: document 2: has no kind",
        "c.yaml: document 1: items[0] has no apiVersion",
        "d.json: line 2: key must be a string",
        "e.yaml: line 2: ",
        "f.yaml: No such file or directory",
    ]) {
        assert!(problem.starts_with(expected), "{problem} for {expected}");
    }
}

#[test]
fn a_bad_object_is_skipped_and_the_rest_of_its_file_served() {
    let typed = service("a", "10.96.0.1").replace("port: 80", "port: eighty");
    let addressless = service("b", "''");
    let text = [typed.as_str(), &addressless, &service("c", "10.96.0.3")].join("---\n");
    let mut rig = Rig::following(&[("x.yaml", &text)]);
    assert_eq!(rig.services(), ["default/c 10.96.0.3"]);
    let skipped = rig.skipped();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(
        skipped[0].starts_with("Service default/a: spec.ports[0].port: invalid type"),
        "{skipped:?}"
    );
    assert_eq!(
        skipped[1],
        "Service default/b: spec.clusterIP: is empty: the Service has no address to serve"
    );

    rig.write("x.yaml", &service("a", "10.96.0.1"));
    rig.until_services(&["default/a 10.96.0.1"]);
    assert!(rig.skipped().is_empty());
    rig.write("x.yaml", &typed.replace("10.96.0.1", "10.96.0.9"));
    rig.until("a skipped object", |rig| rig.skipped().len() == 1);
    assert_eq!(
        rig.services(),
        ["default/a 10.96.0.1"],
        "what cannot be read stays as it was"
    );
}

#[test]
fn of_two_objects_with_one_name_the_later_file_holds() {
    let files = [
        ("1.yaml", &service("a", "10.96.0.1")),
        ("2.yaml", &service("a", "10.96.0.2")),
    ];
    let mut rig = Rig::following(&files.map(|(name, text)| (name, text.as_str())));
    assert_eq!(rig.services(), ["default/a 10.96.0.2"]);
    assert_eq!(
        rig.skipped(),
        ["Service default/a: is in 1.yaml too; this one from 2.yaml holds"]
    );
    fs::remove_file(rig.path("2.yaml")).unwrap();
    rig.until_services(&["default/a 10.96.0.1"]);
    assert!(rig.skipped().is_empty());
}

#[test]
fn selectors_and_our_node_are_as_with_an_api_server() {
    let label = |key: &str, text: &str| {
        text.replacen("metadata:\n", &format!("metadata:\n  labels: {{{key}: ''}}\n"), 1)
    };
    let foreign = label(
        "service.kubernetes.io/service-proxy-name",
        &service("foreign", "10.96.0.1"),
    );
    let headless = service("headless", "None");
    let slice = slice("s", "a", "10.1.0.1");
    let headless_slice = slice.replace("{kubernetes", "{service.kubernetes.io/headless: '', kubernetes");
    let other_node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-b}\n";
    let text = [
        &foreign,
        &headless,
        &service("a", "10.96.0.2"),
        &headless_slice,
        other_node,
    ]
    .join("---\n");
    let rig = Rig::following(&[("x.yaml", &text)]);
    assert_eq!(rig.services(), ["default/a 10.96.0.2"]);
    assert!(rig.endpoints("a").is_empty());
    assert!(rig.snapshot.node().is_none());
    assert!(rig.skipped().is_empty());
}

#[test]
fn endpoints_yield_to_slices_of_the_same_service() {
    let endpoints = |ips: &[&str]| {
        let subsets: String = ips
            .iter()
            .map(|ip| format!("- {{addresses: [{{ip: {ip}}}], ports: [{{port: 1}}]}}\n"))
            .collect();
        format!("apiVersion: v1\nkind: Endpoints\nmetadata: {{name: a}}\nsubsets:\n{subsets}")
    };
    let mut rig = Rig::following(&[("e.yaml", &endpoints(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]))]);
    assert_eq!(rig.endpoints("a").len(), 3);
    rig.write("e.yaml", &endpoints(&["10.1.0.4"]));
    rig.until("fewer endpoints", |rig| rig.endpoints("a") == ["10.1.0.4"]);
    rig.write("s.yaml", &slice("a-1", "a", "10.1.0.9"));
    rig.until("the slice", |rig| rig.endpoints("a") == ["10.1.0.9"]);
    fs::remove_file(rig.path("s.yaml")).unwrap();
    rig.until("the Endpoints", |rig| rig.endpoints("a") == ["10.1.0.4"]);
}

/// As the kubelet updates a ConfigMap volume: files are links through `..data`, which is swapped.
#[test]
fn a_configmap_volume_is_followed() {
    let mut rig = Rig::new(&[]);
    let version = |rig: &Rig, version: &str, text: &str| {
        let directory = rig.path(version);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("a.yaml"), text).unwrap();
        symlink(version, rig.path("..data_tmp")).unwrap();
        fs::rename(rig.path("..data_tmp"), rig.path("..data")).unwrap();
    };
    version(&rig, "..1", &service("a", "10.96.0.1"));
    symlink("..data/a.yaml", rig.path("a.yaml")).unwrap();
    rig.start();
    assert_eq!(rig.services(), ["default/a 10.96.0.1"]);
    version(&rig, "..2", &service("a", "10.96.0.2"));
    fs::remove_dir_all(rig.path("..1")).unwrap();
    rig.until_services(&["default/a 10.96.0.2"]);
    version(&rig, "..3", &service("a", "10.96.0.3"));
    rig.until_services(&["default/a 10.96.0.3"]);
    assert!(rig.problems().is_empty());
}

#[test]
fn files_linked_from_elsewhere_are_followed_where_they_are() {
    let mut rig = Rig::new(&[]);
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("real.yaml");
    fs::write(&file, service("a", "10.96.0.1")).unwrap();
    symlink(&file, rig.path("a.yaml")).unwrap();
    rig.start();
    fs::write(&file, service("a", "10.96.0.2")).unwrap();
    rig.until_services(&["default/a 10.96.0.2"]);
}

#[test]
fn a_directory_that_is_a_swapped_link_is_followed() {
    let base = tempfile::tempdir().unwrap();
    for (version, address) in [("v1", "10.96.0.1"), ("v2", "10.96.0.2")] {
        fs::create_dir(base.path().join(version)).unwrap();
        fs::write(base.path().join(version).join("a.yaml"), service("a", address)).unwrap();
    }
    let link = base.path().join("current");
    symlink("v1", &link).unwrap();
    let mut rig = Rig::new(&[]);
    rig.source = Some(ManifestSource::start(&link, "node-a", rig.mailbox.clone()).unwrap());
    rig.until_services(&["default/a 10.96.0.1"]);
    symlink("v2", base.path().join("next")).unwrap();
    fs::rename(base.path().join("next"), &link).unwrap();
    rig.until_services(&["default/a 10.96.0.2"]);
    fs::write(base.path().join("v2").join("a.yaml"), service("a", "10.96.0.3")).unwrap();
    rig.until_services(&["default/a 10.96.0.3"]);
}

#[test]
fn a_directory_that_goes_away_and_comes_back_is_followed() {
    let mut rig = Rig::following(&[("a.yaml", &service("a", "10.96.0.1"))]);
    let away = rig.directory.path().join("away");
    fs::rename(rig.path(""), &away).unwrap();
    rig.until("a problem", |rig| rig.problems().len() == 1);
    assert_eq!(rig.services(), ["default/a 10.96.0.1"]);
    fs::create_dir(rig.path("")).unwrap();
    rig.write("b.yaml", &service("b", "10.96.0.2"));
    rig.until_services(&["default/b 10.96.0.2"]);
    rig.until("no problem", |rig| rig.problems().is_empty());
    rig.write("b.yaml", &service("b", "10.96.0.3"));
    rig.until_services(&["default/b 10.96.0.3"]);
}

#[test]
fn a_directory_that_is_not_there_at_the_start_is_an_error() {
    let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
    let error = ManifestSource::start(Path::new("/nowhere/manifests"), "n", mailbox.clone()).unwrap_err();
    assert!(matches!(error, ManifestError::Directory { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "cannot read the directory of manifests /nowhere/manifests: No such file or directory (os error 2)"
    );
    assert!(!mailbox.is_open());
}

#[test]
fn thousands_of_documents_in_one_file_are_fine() {
    let mut text = String::new();
    for n in 0..3000 {
        text += &format!(
            "---\n{}",
            service(&format!("s{n}"), &format!("10.96.{}.{}", n / 250, n % 250 + 1))
        );
    }
    let rig = Rig::following(&[("x.yaml", &text)]);
    assert_eq!(rig.services().len(), 3000);
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for n in 1..12 {
        let aliases = vec![format!("*a{}", n - 1); 10].join(",");
        bomb += &format!("a{n}: &a{n} [{aliases}]\n");
    }
    let rig = Rig::following(&[("bomb.yaml", &bomb), ("good.yaml", &service("good", "10.96.0.2"))]);
    assert_eq!(rig.services(), ["default/good 10.96.0.2"]);
    assert_eq!(rig.problems().len(), 1, "{:?}", rig.problems());
}
