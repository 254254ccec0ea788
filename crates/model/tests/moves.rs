//! What an update changed, and why: each reason names the object and field behind it.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use ferry_model::*;

/// A world that changes step by step; tells what moved as people would.
struct World(Planner);

impl World {
    fn new(slices: impl IntoIterator<Item = EndpointSlice>) -> Self {
        let mut events = vec![add(service("shop/web", "10.96.0.1")), set_node(node(Some("a")))];
        events.extend(slices.into_iter().map(add_slice));
        World(planned(options(Policy::nftables()), events))
    }

    fn update(&mut self, events: Vec<Event>) -> (Vec<Moves>, Vec<Decision>) {
        let before = Before::of(&events, self.0.snapshot(), 10);
        let update = self.0.update(events);
        let each = |replaced: &Replaced| moves(replaced, &before, self.0.snapshot(), 3);
        let decided = update
            .replaced
            .iter()
            .flat_map(|replaced| decisions(replaced, 10));
        (update.replaced.iter().map(each).collect(), decided.collect())
    }

    fn moved(&mut self, events: Vec<Event>) -> Vec<String> {
        let (moves, _) = self.update(events);
        let told = moves.into_iter().flat_map(|moves| moves.told);
        told.map(|moved| {
            let way = match moved.way {
                Way::Joined => "joined",
                Way::Left => "left",
            };
            let (endpoint, pools) = (moved.endpoint, moved.pools.as_str());
            format!("{}: {endpoint} {way} {pools}: {}", moved.port, moved.why)
        })
        .collect()
    }
}

fn web(suffix: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let endpoints = endpoints.iter().map(|(address, words)| endpoint(address, words));
    slice("shop/web", suffix, endpoints.collect())
}

#[test]
fn the_slice_and_its_condition_are_named() {
    let (a, b) = ("10.1.0.1", "10.1.0.2");
    let mut world = World::new([web("x", &[(a, "r"), (b, "r")])]);
    assert_eq!(
        world.moved(vec![add_slice(web("x", &[(a, "r"), (b, "x")]))]),
        [
            "shop/web:http: 10.1.0.2:8080 left the cluster pool: slice web-x says ready=false, serving=false, terminating=false"
        ]
    );
    assert_eq!(
        world.moved(vec![add_slice(web("x", &[(a, "r"), (b, "r")]))]),
        ["shop/web:http: 10.1.0.2:8080 joined the cluster pool: slice web-x says ready=true"]
    );
    assert_eq!(
        world.moved(vec![add_slice(web("x", &[(b, "r")]))]),
        ["shop/web:http: 10.1.0.1:8080 left the cluster pool: slice web-x does not have it any more"]
    );
    assert_eq!(
        world.moved(vec![add_slice(web("y", &[(a, "r")]))]),
        ["shop/web:http: 10.1.0.1:8080 joined the cluster pool: slice web-y has it now, with ready=true"]
    );
    assert_eq!(
        world.moved(vec![Event::Slice(SliceName::new("shop", "web-y"), None)]),
        ["shop/web:http: 10.1.0.1:8080 left the cluster pool: slice web-y is gone"]
    );
}

#[test]
fn what_follows_from_others_is_told_as_such() {
    let (a, b) = ("10.1.0.1", "10.1.0.2");
    let mut world = World::new([web("x", &[(a, "r"), (b, "st")])]);
    assert_eq!(
        world.moved(vec![add_slice(web("x", &[(a, "x"), (b, "st")]))]),
        [
            "shop/web:http: 10.1.0.1:8080 left the cluster pool: slice web-x says ready=false, serving=false, terminating=false",
            "shop/web:http: 10.1.0.2:8080 joined the cluster pool: no endpoint is ready any more, and this one still serves",
        ]
    );
    let mut world = World::new([web("x", &[(a, "r z(a)"), (b, "r z(b)")])]);
    assert_eq!(
        world.moved(vec![set_node(node(Some("b")))]),
        [
            "shop/web:http: 10.1.0.1:8080 left the cluster pool: the hints of the slices lead elsewhere (slice web-x: for zone a)",
            "shop/web:http: 10.1.0.2:8080 joined the cluster pool: the hints of the slices lead here now (slice web-x: for zone b)",
        ]
    );
    let mut local = service("shop/web", "10.96.0.1");
    local.internal_policy = TrafficPolicy::Local;
    let mut world = World::new([web("x", &[(a, "r L"), (b, "r")])]);
    assert_eq!(
        world.moved(vec![add(local)]),
        [
            "shop/web:http: 10.1.0.1:8080 joined the local pool: the traffic policy of the Service changed",
            "shop/web:http: 10.1.0.1:8080 left the cluster pool: the traffic policy of the Service changed",
            "shop/web:http: 10.1.0.2:8080 left the cluster pool: the traffic policy of the Service changed",
        ]
    );
    assert_eq!(
        world.moved(vec![Event::Service(name("shop/web"), None)]),
        ["shop/web:http: 10.1.0.1:8080 left the local pool: Service shop/web is gone"]
    );
}

#[test]
fn frontends_are_told_before_and_after_and_much_is_counted() {
    let many: Vec<String> = (1..=9).map(|n| format!("10.1.0.{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|address| (address.as_str(), "r")).collect();
    let mut world = World::new([]);
    let (moves, decided) = world.update(vec![add_slice(web("x", &many))]);
    assert_eq!((moves[0].told.len(), moves[0].more), (3, 6));
    let forward = Action::Forward {
        scope: Scope::Cluster,
        masquerade: false,
    };
    assert_eq!(decided.len(), 1);
    assert_eq!(decided[0].kind, FrontendKind::ClusterIp);
    assert_eq!(decided[0].before, Some(Actions::all(Action::Reject)));
    assert_eq!(decided[0].after.map(|actions| actions.pods), Some(forward));
    let (_, decided) = world.update(vec![Event::Service(name("shop/web"), None)]);
    assert_eq!(decided[0].after, None);
}
