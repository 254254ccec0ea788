//! Any bytes as any kind of object: reading and converting ends, and what becomes a fact is fit to be rendered.

#![no_main]

use ferry_model::Event;
use ferry_sources::convert::Interner;
use ferry_sources::objects::{Object, Shape};
use ferry_sources::Change;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, json)) = data.split_first() else { return };
    let shape = match kind {
        b'S' => Shape::Service,
        b'E' => Shape::EndpointSlice,
        b'P' => Shape::Endpoints,
        b'N' => Shape::Node,
        _ => Shape::ServiceCidr,
    };
    let Ok(object) = Object::from_json(shape, json) else { return };
    let change = Change::of(&object, &Interner::default());
    assert!(change.skipped.len() <= 17, "one object floods the log");
    assert!(change.skipped.iter().all(|skipped| !skipped.to_string().contains('\n')));
    for event in &change.events {
        check(event);
    }
});

fn check(event: &Event) {
    let fit = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-./#".contains(&b));
    match event {
        Event::Service(name, Some(service)) => {
            assert!(fit(name.as_str()) && !service.cluster_ips.is_empty());
            assert!(service.ports.iter().all(|port| fit(&port.name) && port.port != 0 && port.node_port != Some(0)));
        }
        Event::Slice(name, Some(slice)) => {
            assert!(fit(name.as_str()) && fit(slice.service.as_str()));
            assert!(slice.ports.iter().all(|port| fit(&port.name) && port.port != 0));
            let family = |address| ferry_model::Family::of(address) == slice.family;
            assert!(slice.endpoints.iter().all(|endpoint| family(endpoint.address)));
        }
        Event::Node(Some(node)) => assert!(node.addresses.len() <= 2),
        _ => {}
    }
}
