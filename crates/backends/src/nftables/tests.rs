//! Pure properties: the difference of equals is nothing, and applying a difference gives what was wanted.

#[path = "../../tests/nftables/random.rs"]
mod random;
#[path = "../../tests/nftables/world.rs"]
mod world;

use std::collections::HashMap;

use ferry_model::{Family, Plan, Planner};

use super::diff::Diff;
use super::image::{Image, SetImage};
use super::known::want;
use super::ops::{Ops, TableOp};
use super::render::{self, Context};
use super::ruleset::element_key;
use super::{Options, names};

/// The image after the changes.
fn applied(mut image: Image, ops: &Ops) -> Image {
    if ops.table == TableOp::Recreate {
        image = Image::default();
    }
    for (name, chain) in &ops.new_chains {
        assert!(
            image.chains.insert(name.clone(), chain.image.clone()).is_none(),
            "chain {name} is there already"
        );
    }
    for (name, decl) in &ops.new_sets {
        let set = SetImage {
            decl: decl.clone(),
            elements: HashMap::new(),
        };
        assert!(
            image.sets.insert(name.clone(), set).is_none(),
            "set {name} is there already"
        );
    }
    for (name, chain) in &ops.changed_chains {
        assert!(
            image.chains.insert(name.clone(), chain.clone()).is_some(),
            "chain {name} is not there"
        );
    }
    for (name, elements) in &ops.deleted {
        let set = image.sets.get_mut(name).expect("the set of a deleted element");
        for element in elements {
            assert!(
                set.elements.remove(&element_key(element)).is_some(),
                "element of {name} is not there"
            );
        }
    }
    for (name, elements) in &ops.added {
        let set = image.sets.get_mut(name).expect("the set of an added element");
        for element in elements {
            let content = (element.value.clone(), element.comment.clone());
            assert!(
                set.elements.insert(element_key(element), content).is_none(),
                "element of {name} is there already"
            );
        }
    }
    for name in &ops.removed_sets {
        let set = image.sets.remove(name).expect("a removed set");
        assert!(
            set.elements.is_empty(),
            "set {name} is removed before its elements"
        );
    }
    for name in &ops.removed_chains {
        image.chains.remove(name).expect("a removed chain");
    }
    image
}

fn context(plan: &Plan, family: Family) -> Context {
    Options::default().context(plan, family)
}

fn image(plan: &Plan, family: Family) -> Image {
    Image::from(&render::ruleset(plan, &context(plan, family)))
}

fn rich() -> Planner {
    let mut planner = world::planner(world::options());
    planner.update(world::rich());
    planner
}

#[test]
fn nothing_differs_from_itself() {
    let planner = rich();
    for family in Family::BOTH {
        let context = context(planner.plan(), family);
        let (diff, _) = want(
            Diff::against(context.family, image(planner.plan(), family)),
            planner.plan(),
            &context,
        );
        assert!(diff.fits());
        assert_eq!(diff.finish(), Ops::default());
    }
}

#[test]
fn a_table_made_anew_has_everything() {
    let planner = rich();
    for family in Family::BOTH {
        let context = context(planner.plan(), family);
        let (diff, _) = want(
            Diff::anew(context.family, TableOp::Create),
            planner.plan(),
            &context,
        );
        assert_eq!(
            applied(Image::default(), &diff.finish()),
            image(planner.plan(), family)
        );
    }
}

/// From any state to any other, by a full comparison.
#[test]
fn applying_the_difference_gives_what_was_wanted() {
    for seed in 0..60 {
        let (mut a, mut b) = (world::planner(world::options()), world::planner(world::options()));
        let mut changes = random::Changes::new(seed);
        (0..8).for_each(|_| drop(a.update(changes.step())));
        let mut changes = random::Changes::new(seed + 1000);
        (0..8).for_each(|_| drop(b.update(changes.step())));
        for family in Family::BOTH {
            let context = context(b.plan(), family);
            let (diff, _) = want(
                Diff::against(context.family, image(a.plan(), family)),
                b.plan(),
                &context,
            );
            assert!(diff.fits(), "seed {seed}");
            assert_eq!(
                applied(image(a.plan(), family), &diff.finish()),
                image(b.plan(), family),
                "seed {seed}"
            );
        }
    }
}

/// Step by step, by what changed alone.
#[test]
fn following_changes_gives_the_same_as_starting_anew() {
    for seed in 0..60 {
        let mut planner = world::planner(world::options());
        let mut changes = random::Changes::new(seed);
        let mut states: HashMap<Family, (Image, super::known::Known)> = HashMap::new();
        for step in 0..40 {
            planner.update(changes.step());
            for family in Family::BOTH {
                let context = context(planner.plan(), family);
                let fresh = image(planner.plan(), family);
                let before = states
                    .remove(&family)
                    .filter(|(_, known)| known.context == context);
                let after = match before {
                    None => (
                        fresh.clone(),
                        want(
                            Diff::anew(context.family, TableOp::Create),
                            planner.plan(),
                            &context,
                        )
                        .1,
                    ),
                    Some((image, mut known)) => {
                        let ops = known.update(planner.plan()).unwrap();
                        (applied(image, &ops), known)
                    }
                };
                assert_eq!(after.0, fresh, "seed {seed} step {step} {family}");
                states.insert(family, after);
            }
        }
    }
}

#[test]
fn a_replaced_endpoint_is_two_elements() {
    let mut planner = rich();
    let context = context(planner.plan(), Family::V4);
    let (_, mut known) = want(
        Diff::anew(context.family, TableOp::Create),
        planner.plan(),
        &context,
    );
    planner.update([world::endpoints(
        "plain",
        &["10.244.1.2", "10.244.1.3", "10.244.2.9"],
    )]);
    let ops = known.update(planner.plan()).unwrap();
    assert_eq!((ops.additions(), ops.removals()), (1, 1));
    assert_eq!(
        ops.added.keys().map(|name| &**name).collect::<Vec<_>>(),
        [names::ENDPOINTS]
    );
    assert_eq!(known.update(planner.plan()).unwrap(), Ops::default());
}

/// The kernel checks all verdicts of a table whenever one is added, so what changes with a service is data.
#[test]
fn a_changed_service_carries_no_verdict() {
    let pods = ["10.244.1.2", "10.244.1.3", "10.244.2.9"];
    let mut planner = world::planner(world::options());
    let services = [("one", "10.96.0.1"), ("two", "10.96.0.2"), ("three", "10.96.0.3")];
    for (index, (name, address)) in services.into_iter().enumerate() {
        planner.update([
            world::set(world::service(name, address)),
            world::endpoints(name, &pods[..=index]),
        ]);
    }
    let context = context(planner.plan(), Family::V4);
    let anew = Diff::anew(context.family, TableOp::Create);
    let (_, mut known) = want(anew, planner.plan(), &context);
    planner.update([
        world::endpoints("two", &pods),
        world::set(world::service("four", "10.96.0.4")),
        world::endpoints("four", &pods[..1]),
    ]);
    let ops = known.update(planner.plan()).unwrap();
    let data = [names::CLUSTER_IPS, names::ENDPOINTS, names::FRONTENDS];
    let changed: Vec<&str> = ops.added.keys().map(|name| &**name).collect();
    assert_eq!(changed, data);
    // The only pool of two is gone, and with it the way to balance two.
    let gone: Vec<&str> = ops.deleted.keys().map(|name| &**name).collect();
    assert_eq!(gone, [names::BALANCERS, names::FRONTENDS]);
    assert!(ops.new_chains.is_empty() && ops.changed_chains.is_empty());
}

#[test]
fn a_large_pool_is_one_chain() {
    let mut planner = world::planner(world::options());
    let pods: Vec<String> = (0..1500)
        .map(|n| format!("10.244.{}.{}", 2 + n / 250, 1 + n % 250))
        .collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    planner.update([
        world::set(world::service("big", "10.96.0.1")),
        world::endpoints("big", &pods),
    ]);
    let context = Options::default().context(planner.plan(), Family::V4);
    let ruleset = super::render::ruleset(planner.plan(), &context);
    let text = ruleset.to_string();
    assert!(text.contains("chain lb-1500 {"));
    assert!(text.contains("numgen random mod 1500 map @endpoints"));
    assert_eq!(ruleset.sets[names::ENDPOINTS].elements.len(), 1500);
}

/// Whatever the size of the pool, a client with affinity meets as many rules; and one endpoint is a few elements.
#[test]
fn affinity_costs_the_same_in_a_large_pool() {
    let mut planner = world::planner(world::options());
    let pods: Vec<String> = (0..1001)
        .map(|n| format!("10.244.{}.{}", 2 + n / 250, 1 + n % 250))
        .collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let mut service = world::service("sticky", "10.96.0.1");
    service.affinity = Some(std::time::Duration::from_secs(600));
    planner.update([world::set(service), world::endpoints("sticky", &pods[..1000])]);
    let context = context(planner.plan(), Family::V4);
    let anew = Diff::anew(context.family, TableOp::Create);
    let (diff, mut known) = want(anew, planner.plan(), &context);
    let chains = diff.finish().new_chains;
    let own: Vec<_> = chains
        .iter()
        .filter(|(name, _)| name.contains("sticky"))
        .collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].1.image.rules.len(), 6);
    // The last of the pool, in the order of their texts, gives way to one that is last too.
    let kept = pods[..1000].iter().filter(|pod| **pod != "10.244.5.99");
    let replaced: Vec<&str> = kept.chain(&pods[1000..]).copied().collect();
    planner.update([world::endpoints("sticky", &replaced)]);
    let ops = known.update(planner.plan()).unwrap();
    assert!(ops.new_chains.is_empty() && ops.changed_chains.is_empty());
    assert!(ops.additions() <= 4 && ops.removals() <= 4, "{ops:?}");
}

/// A table that was not there is filled in portions; one that packets meet changes at once.
#[test]
fn only_a_large_new_table_takes_several_transactions() {
    let mut planner = world::planner(world::options());
    let pods: Vec<String> = (0..25_000u32)
        .map(|n| std::net::Ipv4Addr::from(0x0af4_0000 + n).to_string())
        .collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    planner.update([
        world::set(world::service("big", "10.96.0.1")),
        world::endpoints("big", &pods),
    ]);
    let context = context(planner.plan(), Family::V4);
    let sizes = |table| -> Vec<usize> {
        let (diff, _) = want(Diff::anew(context.family, table), planner.plan(), &context);
        let ops = diff.finish();
        let batches = ops.batches(context.family, Some(7));
        batches.map(|batch| batch.elements()).collect()
    };
    let portions = sizes(TableOp::Create);
    assert!(portions.iter().all(|size| *size <= 10_000), "{portions:?}");
    assert_eq!(portions.last(), Some(&1), "the verdict comes with the chains");
    let whole = sizes(TableOp::Recreate);
    assert_eq!(whole, [portions.iter().sum::<usize>()]);
    assert!(whole > vec![25_000]);
}
