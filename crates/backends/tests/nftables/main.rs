//! The nftables backend against the real kernel, each test in a network namespace of its own.
#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;

use ferry_backends::nftables::{Nftables, Options, render};
use ferry_backends::{Alarm, Backend};
use ferry_lab::netns::Namespace;
use ferry_model::{Family, Planner};

fn silent() -> Alarm {
    Arc::new(|| ())
}

fn backend(namespace: &Namespace) -> Nftables {
    namespace
        .run(|| Nftables::new(Options::default(), silent()).unwrap())
        .unwrap()
}

fn apply(backend: &mut Nftables, planner: &Planner) -> usize {
    Family::BOTH
        .map(|family| {
            let applied = backend.apply(planner.plan(), family).unwrap();
            assert_eq!(applied.warnings, Vec::<String>::new());
            applied.added + applied.removed
        })
        .iter()
        .sum()
}

/// The rules as `nft` understands them, without handles.
fn listed(namespace: &Namespace) -> serde_json::Value {
    let text = namespace.sh("nft -j list ruleset").unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    strip(&mut value);
    let objects = value["nftables"].as_array_mut().unwrap();
    objects.retain(|object| object.get("metainfo").is_none());
    objects.sort_by_key(|object| object.to_string());
    value
}

/// Handles differ from load to load, and elements have no order.
fn strip(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.remove("handle");
            fields.values_mut().for_each(strip);
            if let Some(serde_json::Value::Array(elements)) = fields.get_mut("elem") {
                elements.sort_by_key(|element| element.to_string());
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

fn load(namespace: &Namespace, text: &str) {
    use std::io::Write;
    let mut child = namespace
        .command("nft")
        .args(["-f", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

#[test]
fn the_kernel_has_what_display_says() {
    let mut planner = world::planner(world::options());
    planner.update(world::rich());
    let ours = Namespace::new("ours").unwrap();
    apply(&mut backend(&ours), &planner);
    let text = Namespace::new("text").unwrap();
    for family in Family::BOTH {
        load(
            &text,
            &render(planner.plan(), family, &Options::default()).to_string(),
        );
    }
    let (written, said) = (listed(&ours), listed(&text));
    assert_eq!(
        written["nftables"].as_array().unwrap().len(),
        said["nftables"].as_array().unwrap().len()
    );
    for (written, said) in written["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .zip(said["nftables"].as_array().unwrap())
    {
        assert_eq!(written, said);
    }
}
