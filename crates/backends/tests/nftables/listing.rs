//! What `nft` says about what we wrote.

use std::io::Write;
use std::process::Stdio;

use ferry_backends::nftables::{Options, listing};
use ferry_lab::netns::Namespace;
use ferry_model::Family;
use serde_json::Value;

use super::{apply, backend, rich, world};

/// The rules as `nft` understands them, without what differs from load to load.
fn listed(namespace: &Namespace) -> Vec<Value> {
    let text = namespace.sh("nft -j list ruleset").unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    strip(&mut value);
    let mut objects: Vec<Value> = value["nftables"].as_array().unwrap().clone();
    objects.retain(|object| object.get("metainfo").is_none());
    objects.sort_by_key(|object| object.to_string());
    objects
}

/// Handles differ from load to load, and elements have no order.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("handle");
            fields.values_mut().for_each(strip);
            if let Some(Value::Array(elements)) = fields.get_mut("elem") {
                elements.sort_by_key(|element| element.to_string());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

pub(crate) fn load(namespace: &Namespace, text: &str) {
    let mut child = namespace
        .command("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

fn load_text(namespace: &Namespace, planner: &ferry_model::Planner, options: &Options) {
    for family in Family::BOTH {
        load(namespace, &listing(planner.plan(), family, options).to_string());
    }
}

#[test]
fn the_kernel_has_what_display_says() {
    let planner = rich();
    let (ours, text) = (Namespace::new("ours").unwrap(), Namespace::new("text").unwrap());
    apply(&mut backend(&ours), &planner);
    load_text(&text, &planner, &Options::default());
    let (written, said) = (listed(&ours), listed(&text));
    for (written, said) in written.iter().zip(&said) {
        assert_eq!(written, said);
    }
    assert_eq!(written.len(), said.len());
    assert!(written.len() > 100, "{}", written.len());
}

/// What `nft` loads from the text is what we would have written: a start on top of it has nothing to do.
#[test]
fn what_nft_loads_is_taken_over_as_it_is() {
    let mut options = world::options();
    options.node_port_addresses = world::nets(&["192.0.2.0/24", "2001:db8::/32"])
        .into_iter()
        .map(ferry_model::NodePortAddress::Cidr)
        .collect();
    options.detect_local = ferry_model::DetectLocal::InterfacePrefix("veth".into());
    options.masquerade_all = true;
    let mut planner = world::planner(options);
    planner.update(world::rich());
    let namespace = Namespace::new("text").unwrap();
    load_text(&namespace, &planner, &Options::default());
    let changed = apply(&mut backend(&namespace), &planner);
    assert_eq!(changed, 0);
}
